package pglock

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/faultproxy"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// commitScene is a hold, and a table that its work writes to.
type commitScene struct {
	*Backend
	t    *testing.T
	db   *sql.DB // the administrator's
	net  *faultproxy.Proxy
	hold driver.Request
}

func newCommitScene(t *testing.T) *commitScene {
	t.Helper()
	pg := testserver.SharedPostgres(t)
	url := pg.Database(t)
	l := &commitScene{t: t, db: pg.DB(t, url), net: faultproxy.New(t, pg.Addr()), hold: request("report")}
	must.Get(l.db.ExecContext(t.Context(), "CREATE TABLE work (n int UNIQUE DEFERRABLE INITIALLY DEFERRED)"))(t)
	through := strings.Replace(url, pg.Addr(), l.net.Addr(), 1)
	l.Backend = open(t, with(t, through, "strategy", "advisory", "create", "true"))
	take(t, l, l.hold)
	return l
}

func (l *commitScene) write(tx *sql.Tx) error {
	_, err := tx.ExecContext(l.t.Context(), "INSERT INTO work VALUES (1)")
	return err
}

func (l *commitScene) wantStored(want int) {
	l.t.Helper()
	var n int
	if err := l.db.QueryRowContext(l.t.Context(), "SELECT count(*) FROM work").Scan(&n); err != nil || n != want {
		l.t.Errorf("%d rows stored, %v, want %d", n, err, want)
	}
}

// wantHeld checks that the lock is held until it is released.
func (l *commitScene) wantHeld() {
	l.t.Helper()
	next := request(l.hold.Name)
	held(l.t, l, next)
	release(l.t, l, l.hold)
	take(l.t, l, next)
	release(l.t, l, next)
}

func TestCommitStoresTheWork(t *testing.T) {
	t.Parallel()
	l := newCommitScene(t)
	for n := range 2 {
		must.OK(t, l.Commit(t.Context(), l.hold.Owner, func(tx *sql.Tx) error {
			_, err := tx.ExecContext(t.Context(), "INSERT INTO work VALUES ($1)", n)
			return err
		}))
		l.wantStored(n + 1)
	}
	l.wantHeld()
	err := l.Commit(t.Context(), l.hold.Owner, func(*sql.Tx) error { t.Error("work without a lock"); return nil })
	if !errors.Is(err, driver.ErrLost) {
		t.Errorf("Commit after the release: %v, want ErrLost", err)
	}
}

// The caller's work has the timeouts of its user.
func TestWorkHasTheUsersTimeouts(t *testing.T) {
	t.Parallel()
	pg := testserver.SharedPostgres(t)
	plain := pg.Database(t)
	pg.Exec(t, "ALTER DATABASE "+databaseOf(t, plain)+" SET statement_timeout = '77s'", "ALTER DATABASE "+databaseOf(t, plain)+" SET lock_timeout = '78s'")
	b := open(t, with(t, plain, advisoryParams...))
	r := request("lock")
	take(t, b, r)
	must.OK(t, b.Commit(t.Context(), r.Owner, func(tx *sql.Tx) error {
		var statement, wait string
		err := tx.QueryRow("SELECT current_setting('statement_timeout'), current_setting('lock_timeout')").Scan(&statement, &wait)
		if err == nil && (statement != "77s" || wait != "78s") {
			t.Errorf("timeouts of %s and %s", statement, wait)
		}
		return err
	}))
	release(t, b, r)
}

func TestCommitRollsBack(t *testing.T) {
	t.Parallel()
	refused := errors.New("no")
	for name, c := range map[string]struct {
		then func(l *commitScene, tx *sql.Tx) error
		says string
	}{
		"work that fails":          {func(*commitScene, *sql.Tx) error { return refused }, "no"},
		"work that hides an error": {func(_ *commitScene, tx *sql.Tx) error { tx.Exec("SELECT 1/0"); return nil }, "refused to commit"},
		"what is checked last":     {func(l *commitScene, tx *sql.Tx) error { return l.write(tx) }, "refused to commit"},
		"work that rolls back":     {func(_ *commitScene, tx *sql.Tx) error { return tx.Rollback() }, "had ended before"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newCommitScene(t)
			err := l.Commit(t.Context(), l.hold.Owner, func(tx *sql.Tx) error { return errors.Join(l.write(tx), c.then(l, tx)) })
			if err == nil || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "unknown") {
				t.Errorf("%v, want %q", err, c.says)
			}
			l.wantStored(0)
			l.wantHeld()
		})
	}
}

func TestCommitEndsWithItsContext(t *testing.T) {
	t.Parallel()
	l := newCommitScene(t)
	ctx, cancel := context.WithCancel(t.Context())
	err := l.Commit(ctx, l.hold.Owner, func(tx *sql.Tx) error {
		defer cancel()
		return l.write(tx)
	})
	if !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	l.wantStored(0)
	l.wantHeld()
}

func TestCommitOfWorkThatPanics(t *testing.T) {
	t.Parallel()
	l := newCommitScene(t)
	func() {
		defer func() {
			if recover() != "oh" {
				t.Error("the panic is gone")
			}
		}()
		l.Commit(t.Context(), l.hold.Owner, func(tx *sql.Tx) error {
			l.write(tx)
			panic("oh")
		})
	}()
	l.wantStored(0)
	l.wantHeld()
}

func TestCommitWhoseConnectionIsKilled(t *testing.T) {
	t.Parallel()
	l := newCommitScene(t)
	err := l.Commit(t.Context(), l.hold.Owner, func(tx *sql.Tx) error {
		var pid int
		err := tx.QueryRowContext(t.Context(), "SELECT pg_backend_pid()").Scan(&pid)
		if err == nil {
			err = l.write(tx)
		}
		if err == nil {
			_, err = l.db.ExecContext(t.Context(), "SELECT pg_terminate_backend($1)", pid)
		}
		return err
	})
	if err == nil {
		t.Error("work without a connection was committed")
	}
	l.wantStored(0)
	err = l.Commit(t.Context(), l.hold.Owner, func(*sql.Tx) error { t.Error("the work has begun"); return nil })
	if !errors.Is(err, driver.ErrLost) {
		t.Errorf("Commit without the lock: %v, want ErrLost", err)
	}
}

// A commit without an answer may or may not be stored. The error says that the outcome is unknown.
func TestCommitOfUnknownOutcome(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		lose   func(*faultproxy.Proxy)
		stored int
	}{
		"the answer is lost":  {func(p *faultproxy.Proxy) { p.LoseReply("commit") }, 1},
		"the request is lost": {func(p *faultproxy.Proxy) { p.LoseRequest("commit") }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newCommitScene(t)
			err := l.Commit(t.Context(), l.hold.Owner, func(tx *sql.Tx) error {
				c.lose(l.net)
				return l.write(tx)
			})
			if err == nil || !strings.Contains(err.Error(), "unknown") || errors.Is(err, driver.ErrLost) || driver.Final(err) {
				t.Errorf("%v", err)
			}
			if l.net.Lost() != 1 {
				t.Errorf("%d requests lost", l.net.Lost())
			}
			l.wantStored(c.stored)
		})
	}
}

// Close does not wait for work that never ends. It closes the connection.
func TestCloseInTheMiddleOfACommit(t *testing.T) {
	t.Parallel()
	l := newCommitScene(t)
	begun, result := make(chan struct{}), make(chan error, 1)
	go func() {
		result <- l.Commit(context.Background(), l.hold.Owner, func(tx *sql.Tx) error {
			err := l.write(tx)
			close(begun)
			tx.Exec("SELECT pg_sleep(600)")
			return err
		})
	}()
	<-begun
	within(t, "Close", func(context.Context) { l.Close() })
	within(t, "Commit", func(context.Context) {
		if err := <-result; !errors.Is(err, driver.ErrClosed) && !errors.Is(err, driver.ErrLost) {
			t.Errorf("Commit of a closed backend: %v", err)
		}
	})
	l.wantStored(0)
}

func TestCommitIsForAdvisory(t *testing.T) {
	t.Parallel()
	b := onHandle(t, testserver.SharedPostgres(t).Database(t))
	expect.Be(t, b.Commit(t.Context(), "me", nil), driver.ErrUnsupported)
}
