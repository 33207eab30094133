package sqltest

import (
	"context"
	"fmt"
	"testing"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
)

// stall delays the statements in which an owner writes its numbers, until letGo is called.
func (s *scene) stall(owner string) (letGo func()) {
	s.t.Helper()
	ctx := context.Background()
	db := s.admin()
	conn := must.Get(db.Conn(ctx))(s.t)
	for _, text := range s.kind.stall {
		must.OK(s.t, expect.Err(conn.ExecContext(ctx, fmt.Sprintf(text, s.table, owner))), text)
	}
	return func() {
		conn.Close()
		db.Close()
	}
}

// A number is written through the lock's own connection, or through another one. If the lock's connection ends meanwhile, and the
// next holder has a number, the late owner must not be granted: its fence would be greater.
func TestNoFenceForADeadConnection(t *testing.T) {
	t.Parallel()
	eachOnConnections(t, func(t *testing.T, s strategy) {
		c := newScene(t, s, s.kind.shared(t))
		user := c.user()
		first, next := c.backend(user), c.backend(c.user())
		r, rival := exclusive(lockName), exclusive(lockName)
		letGo := c.stall(r.Owner)
		defer letGo()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		late := background(ctx, first, r)
		c.awaitStuck(user)
		if s.query == "strategy=forupdate" { // writes through another connection
			c.srv.Exec(t, fmt.Sprintf(c.kind.killIdle, nameOf(user)))
		} else {
			c.srv.Exec(t, fmt.Sprintf(c.kind.killStuck, nameOf(user), r.Owner))
		}
		acquire(t, next, rival)
		letGo()
		if err := <-late; err == nil {
			t.Error("granted on a closed connection after another owner got the lock")
		}
		renewed(t, ctx, next, []driver.Hold{rival.Hold})
	})
}
