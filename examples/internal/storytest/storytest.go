// Package storytest runs the examples' stories in tests.
package storytest

import (
	"testing"
	"testing/synctest"

	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/examples/internal/story"
)

// Run runs a test of a story in virtual time, with locks in memory. The story is written to the test's log.
func Run(t *testing.T, test func(t *testing.T, s *story.Story)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore()
		s := story.New(func() driver.Backend { return store.Connect() }, t.Output())
		test(t, s)
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}
