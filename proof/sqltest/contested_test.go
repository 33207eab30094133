package sqltest

import (
	"context"
	"database/sql"
	"fmt"
	"testing"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
)

// admin returns the administrator's pool.
func (s *scene) admin() *sql.DB { return s.srv.DB(s.t, s.database) }

// lockRow locks the row with a name's number until unlock is called, like an administrator's open
// transaction.
func (s *scene) lockRow(name string) (unlock func()) {
	s.t.Helper()
	ctx := context.Background()
	tx := must.Get(s.admin().BeginTx(ctx, nil))(s.t)
	var key string
	query := fmt.Sprintf("SELECT k FROM %s WHERE name = '%s'", s.table, name)
	if s.kind == mariaDB {
		query += " AND k NOT LIKE '#%'"
	}
	err := tx.QueryRowContext(ctx, query).Scan(&key)
	if err == nil && s.kind == mariaDB {
		_, err = tx.ExecContext(ctx, "SELECT k FROM "+s.table+" WHERE k = ? FOR UPDATE", key)
	} else if err == nil {
		_, err = tx.ExecContext(ctx, "SELECT k FROM "+s.table+" WHERE k = $1 FOR UPDATE", []byte(key))
	}
	if err != nil {
		s.t.Fatal(err)
	}
	return func() { tx.Rollback() }
}

// background tries to acquire once.
func background(ctx context.Context, b driver.Backend, r driver.Request) <-chan error {
	done := make(chan error, 1)
	go func() {
		_, err := b.Acquire(ctx, r)
		done <- err
	}()
	return done
}

// A locked row delays only its own name. Other names are locked, renewed and unlocked.
func TestOneLockedRowHoldsUpNoOtherName(t *testing.T) {
	t.Parallel()
	eachOnConnections(t, func(t *testing.T, s strategy) {
		c := newScene(t, s, s.kind.shared(t))
		user := c.user()
		b := c.backend(user)
		contested, other := exclusive("contested"), exclusive("other")
		for _, r := range []driver.Request{contested, other} {
			acquire(t, b, r)
			must.OK(t, b.Release(t.Context(), r.Hold))
		}
		var holds []driver.Hold
		for i := range 10 {
			r := exclusive(fmt.Sprint("held ", i))
			acquire(t, b, r)
			holds = append(holds, r.Hold)
		}
		unlock := c.lockRow(contested.Name)
		defer unlock()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		waits := make(chan error, 1)
		go func() { // each attempt gives up in a moment
			err := expect.Err(b.Acquire(ctx, contested))
			for err != nil && ctx.Err() == nil {
				err = expect.Err(b.Acquire(ctx, contested))
			}
			waits <- err
		}()
		c.awaitStuck(user)
		renewed(t, ctx, b, holds)
		expect.OK(t, expect.Err(b.Acquire(ctx, other)), "another name")
		expect.OK(t, b.Release(ctx, other.Hold), "another name")
		another, err := driver.Open(ctx, c.url(c.user()))
		must.OK(t, err, "open")
		closes(t, another)
		renewed(t, ctx, b, holds)
		select {
		case err := <-waits:
			t.Errorf("the row is locked still: %v", err)
		default:
		}
		unlock()
		expect.OK(t, <-waits, "the row is free")
	})
}

func renewed(t *testing.T, ctx context.Context, b driver.Backend, holds []driver.Hold) {
	t.Helper()
	for i, err := range b.Renew(ctx, holds) {
		expect.OK(t, err, "hold", i)
	}
}

// A hold whose row is locked is renewed and released like any other.
func TestAHoldOfALockedRow(t *testing.T) {
	t.Parallel()
	eachOnConnections(t, func(t *testing.T, s strategy) {
		c := newScene(t, s, s.kind.shared(t))
		user := c.user()
		b := c.backend(user)
		r, other := exclusive(lockName), exclusive("other")
		acquire(t, b, other)
		acquire(t, b, r)
		must.OK(t, b.Release(t.Context(), other.Hold))
		unlock := c.lockRow(lockName)
		defer unlock()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		short, stop := context.WithCancel(ctx)
		again := background(short, b, r)
		c.awaitStuck(user)
		renewed(t, ctx, b, []driver.Hold{r.Hold})
		if _, err := b.Acquire(ctx, other); err != nil { // in a table of a few rows
			t.Errorf("another name: %v", err)
		}
		stop()
		if err := <-again; err == nil {
			t.Error("granted again without a number")
		}
		renewed(t, ctx, b, []driver.Hold{r.Hold})
		expect.OK(t, b.Release(ctx, r.Hold))
		unlock()
		expect.Be(t, b.Release(ctx, r.Hold), driver.ErrLost, "a second Release")
	})
}
