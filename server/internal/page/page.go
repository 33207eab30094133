// Package page is the web page of a server: what is held and waited for, live. It knows nothing of tokens: package server
// identifies the viewer and checks what that one may do, before it asks for a page.
package page

import (
	"cmp"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/server/internal/seen"
)

// Options say what a page shows.
type Options struct {
	Inspector driver.Inspector // of the backend
	Seen      *seen.Log
	Caps      driver.Caps
	CanAsk    bool   // the backend can ask holders for their locks
	Version   string // of the program
}

// Page is the page of one server. It is safe for concurrent use.
type Page struct {
	o      Options
	files  *files
	poller poller
}

// New returns the page of a server.
func New(o Options) *Page {
	o.Version = cmp.Or(o.Version, "devel")
	f := newFiles()
	return &Page{o: o, files: f, poller: poller{inspector: o.Inspector, seen: o.Seen, files: f}}
}
