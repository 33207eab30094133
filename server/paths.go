package server

import (
	"net/http"
	"net/url"
	"strings"
)

// slashName stands for the name "/" in a path: http.ServeMux takes a segment that is %2F for the end of the path.
const slashName = "\x00"

// replaceSlashName returns r with slashName in place of the name "/".
func replaceSlashName(r *http.Request) *http.Request {
	segments := strings.Split(r.URL.EscapedPath(), "/")
	replaced := false
	for i, s := range segments {
		if strings.EqualFold(s, "%2F") {
			segments[i], replaced = url.PathEscape(slashName), true
		}
	}
	if !replaced {
		return r
	}
	u := *r.URL
	u.RawPath = strings.Join(segments, "/")
	u.Path, _ = url.PathUnescape(u.RawPath)
	r = r.WithContext(r.Context())
	r.URL = &u
	return r
}

// isClean reports whether a path has no empty segment before its last one, and none that is ., .. or NUL.
func isClean(path string) bool {
	segments := strings.Split(strings.TrimPrefix(path, "/"), "/")
	for i, s := range segments {
		if s == "." || s == ".." || s == url.PathEscape(slashName) || s == "" && i < len(segments)-1 {
			return false
		}
	}
	return true
}
