//go:build linux

package chaos

import (
	"net/url"
	"path/filepath"
	"time"
)

func sqliteCells() []cell {
	file := deployment{name: "sqlite", title: "SQLite", ttl: time.Second, start: func(s *scene) {
		s.url = "sqlite:" + url.PathEscape(filepath.Join(s.TempDir(), "locks.db"))
	}}
	return []cell{
		{file, killClient, "kill-client", safe},
		{file, pauseClient, "pause-client", withFences},
	}
}
