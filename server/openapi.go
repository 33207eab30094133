package server

import (
	_ "embed"
	"net/http"
)

// openAPI is written by hand. A test compares it with the calls and the messages.
//
//go:embed openapi.json
var openAPI []byte

func serveOpenAPI(_ *Server, w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(openAPI)
}
