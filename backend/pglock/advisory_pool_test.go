package pglock

import (
	"context"
	"errors"
	"testing"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/testserver"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Who may read and write the table needs no other right: Open leaves nothing that is to be
// deleted.
func TestAdvisoryNeedsThreeRights(t *testing.T) {
	t.Parallel()
	for _, level := range []Level{Session, Transaction} {
		pg := testserver.SharedPostgres(t)
		url := pg.Database(t)
		admin := pg.DB(t, url)
		if _, err := admin.ExecContext(t.Context(), Schema(Options{Strategy: Advisory})); err != nil {
			t.Fatal(err)
		}
		user := pg.User(t, url, "pw", "SELECT, INSERT, UPDATE ON distlock_fences")
		b := open(t, with(t, user, "strategy", "advisory", "level", string(level)))
		var rows int
		if err := admin.QueryRowContext(t.Context(), "SELECT count(*) FROM distlock_fences").Scan(&rows); err != nil || rows != 0 {
			t.Errorf("%d rows after Open, %v", rows, err)
		}
		r := request("lock")
		take(t, b, r)
		release(t, b, r)
	}
}

// A connection of the user's pool is closed, not given back with locks and settings.
func TestAdvisoryLeavesTheUsersPoolClean(t *testing.T) {
	t.Parallel()
	for _, level := range []Level{Session, Transaction} {
		t.Run(string(level), func(t *testing.T) {
			t.Parallel()
			pg := testserver.SharedPostgres(t)
			url := pg.Database(t)
			pool, err := pgxpool.New(t.Context(), with(t, url, "pool_max_conns", "4"))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(pool.Close)
			b, err := NewPool(t.Context(), pool, &Options{Strategy: Advisory, Level: level, Create: true})
			if err != nil {
				t.Fatal(err)
			}
			take(t, b, request("lock"))
			if err := b.Close(); err != nil {
				t.Error(err)
			}
			wantClean(t, pool)
			eventually(t, "no advisory lock is left", func() bool { return lockers(t, pg, url) == "0" })
		})
	}
}

// wantClean looks at all connections of a pool.
func wantClean(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	for _, conn := range pool.AcquireAllIdle(t.Context()) {
		defer conn.Release()
		for _, setting := range []string{"idle_session_timeout", "idle_in_transaction_session_timeout", "client_connection_check_interval"} {
			var value string
			if err := conn.QueryRow(t.Context(), "SELECT setting FROM pg_settings WHERE name = $1", setting).Scan(&value); err != nil || value != "0" {
				t.Errorf("%s is %s, %v", setting, value, err)
			}
		}
	}
}

// One connection is left for others, also for a hold that is to be ended from outside.
func TestAdvisoryReleaseOfAnothersHoldNeedsOneConnection(t *testing.T) {
	t.Parallel()
	pg := testserver.SharedPostgres(t)
	url := pg.Database(t)
	for _, level := range []Level{Session, Transaction} {
		a, _ := lent(t, url, level, 3)
		b, db := lent(t, url, level, 3)
		theirs, mine := request("theirs"+string(level)), request("mine")
		take(t, a, theirs)
		take(t, b, mine)
		others, err := db.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		within(t, "Release", func(ctx context.Context) {
			if err := b.Release(ctx, theirs.Hold); err != nil {
				t.Errorf("level %s: %v", level, err)
			}
		})
		for _, err := range a.Renew(t.Context(), []driver.Hold{theirs.Hold}) {
			if !errors.Is(err, driver.ErrLost) {
				t.Errorf("level %s: Renew of what was released: %v", level, err)
			}
		}
		release(t, b, mine)
		others.Close()
	}
}

func TestAdvisoryLeavesAConnectionForOthers(t *testing.T) {
	t.Parallel()
	pg := testserver.SharedPostgres(t)
	b, db := lent(t, pg.Database(t), Transaction, 3)
	for i, name := range []string{"a", "b", "c"} {
		_, err := b.Acquire(t.Context(), request(name))
		if (err == nil) != (i < 2) || driver.Final(err) || errors.Is(err, driver.ErrHeld) {
			t.Errorf("hold %d of a pool of 3: %v", i+1, err)
		}
	}
	if err := db.PingContext(t.Context()); err != nil {
		t.Error(err)
	}
	small := pg.DB(t, pg.Database(t))
	small.SetMaxOpenConns(1)
	_, err := New(t.Context(), small, &Options{Strategy: Advisory, Create: true})
	wantRefusal(t, err, "the pool's limit is 1")
}
