// Package storytest lets tests tell the examples' stories.
package storytest

import (
	"path/filepath"
	"testing"

	"github.com/distlock/distlock/examples/internal/story"
)

// New begins a story whose locks are in a SQLite file of the test's, and which is told
// to the test's log.
func New(t *testing.T) *story.Story {
	t.Helper()
	s := story.New("sqlite:"+filepath.Join(t.TempDir(), "locks.db"), t.Output())
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}
