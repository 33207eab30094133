package sqltest

import (
	"context"
	"errors"
	"testing"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/internal/testkit/must"
)

// deleteRows deletes all that is known of the locks, as an operator may do.
func (s *scene) deleteRows() {
	s.t.Helper()
	table := s.table
	if table == "" {
		table = "distlock_locks"
	}
	must.Get(s.admin().Exec("DELETE FROM " + table))(s.t)
}

// Rows are deleted by others: another client may get the lock, under a greater fence, and the holder is told. Locks on connections
// have only their numbers there, and go on from the clock.
func TestRowsAreDeleted(t *testing.T) {
	each(t, func(t *testing.T, s strategy) {
		t.Parallel()
		c := newScene(t, s, s.kind.shared(t))
		first, second := c.party(c.user()), c.party(c.user())
		held := first.take(t)
		if s.leased {
			c.deleteRows()
		} else {
			unlock(t, held)
			c.deleteRows()
		}
		next := second.take(t)
		if next.Fence() <= held.Fence() {
			t.Errorf("fence %d after %d", next.Fence(), held.Fence())
		}
		<-held.Context().Done()
		if cause := context.Cause(held.Context()); s.leased && !errors.Is(cause, distlock.ErrLost) {
			t.Errorf("the holder's context ended by %v", cause)
		}
		unlock(t, next)
	})
}
