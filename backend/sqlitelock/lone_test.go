package sqlitelock

import (
	"context"
	sqldriver "database/sql/driver"
	"testing"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
)

// counted is a statement that counts how often it is used.
type counted struct {
	driverStmt
	n *int
}

func (c counted) ExecContext(ctx context.Context, args []sqldriver.NamedValue) (sqldriver.Result, error) {
	*c.n++
	return c.driverStmt.ExecContext(ctx, args)
}

// A call that comes alone opens no transaction, within which its process could be stopped: also one that is refused, and one after
// another process has written.
func TestLoneCallsOpenNoTransaction(t *testing.T) {
	path := lockFile(t)
	b, other := connect(t, path), connect(t, path)
	r := request("x", driver.Exclusive, long)
	take(t, other, r) // makes the row
	free(t, other, r)
	take(t, b, r)
	free(t, b, r)
	opened := 0
	must.OK(t, b.store.w.do(t.Context(), func(j *job) error {
		begin := j.w.stmts.begin
		begin.stmt = counted{begin.stmt, &opened}
		j.w.stamped = j.w.clock.now() + int64(long) // it is not due
		return nil
	}))
	for _, from := range []*Backend{b, other, b, b} {
		r := request("x", driver.Exclusive, long)
		take(t, from, r)
		_, err := b.Acquire(t.Context(), request("x", driver.Exclusive, long))
		expect.Be(t, err, driver.ErrHeld, "another's attempt")
		must.OK(t, from.Renew(t.Context(), []driver.Hold{r.Hold})[0])
		free(t, from, r)
	}
	expect.Equal(t, opened, 0, "transactions")
}
