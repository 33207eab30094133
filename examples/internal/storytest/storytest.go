// Package storytest runs the examples' stories in tests.
package storytest

import (
	"path/filepath"
	"testing"

	"github.com/distlock/distlock/examples/internal/story"
)

// New starts a story with locks in a SQLite file of the test, which it writes to the test's log.
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
