package gooselock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"
	"github.com/pressly/goose/v3/lock/locktesting"
	_ "modernc.org/sqlite"
)

// lockers makes Lockers of different processes, as far as the store can tell.
func lockers(t *testing.T, opts ...distlock.LockOption) func() *Locker {
	store := memlock.NewStore()
	return func() *Locker {
		c := must.Get(distlock.New(store.Connect(), nil))(t)
		t.Cleanup(func() { c.Close() })
		return New(c.Mutex("migrations", opts...))
	}
}

func open(t *testing.T, path string) *sql.DB {
	db := must.Get(sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(60000)"))(t)
	t.Cleanup(func() { db.Close() })
	return db
}

// goose's own test: of many providers one migrates, and the others find nothing to do.
func TestProviders(t *testing.T) {
	path, next, migrations := filepath.Join(t.TempDir(), "db"), lockers(t), fstest.MapFS{}
	for i := range 5 {
		migrations[fmt.Sprintf("%05d_x.sql", i+1)] = &fstest.MapFile{Data: fmt.Appendf(nil, "-- +goose Up\nCREATE TABLE t%d (a);\n", i)}
	}
	locktesting.TestProviderLocking(t, func(t *testing.T) *goose.Provider {
		p := must.Get(goose.NewProvider(goose.DialectSQLite3, open(t, path), migrations, goose.WithLocker(next())))(t)
		return p
	})
}

// goose's own test: of many lockers one holds, and the others give up in time.
func TestLockers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		next := lockers(t)
		locktesting.TestConcurrentLocking(t, open(t, filepath.Join(t.TempDir(), "db")),
			func(*testing.T) lock.Locker { return next() }, time.Second)
	})
}

func TestUnlock(t *testing.T) {
	l := lockers(t)()
	if err := l.Unlock(context.Background(), nil); err == nil {
		t.Error("a lock that is not held was unlocked")
	}
	for range 2 {
		must.OK(t, l.Lock(context.Background(), nil))
		must.OK(t, l.Unlock(context.Background(), nil))
	}
}

// An Unlock after a loss does not release the lock that another call has taken since.
func TestUnlockAfterALoss(t *testing.T) {
	next := lockers(t, distlock.MaxHold(50*time.Millisecond), distlock.WithTTL(time.Second))
	l := next()
	must.OK(t, l.Lock(t.Context(), nil))
	first := l.leases[0]
	<-first.Context().Done()
	must.OK(t, l.Lock(t.Context(), nil))
	second := l.leases[1]
	expect.Be(t, l.Unlock(t.Context(), nil), distlock.ErrLost, "unlock of the lost one")
	if errors.Is(second.Err(), distlock.ErrReleased) {
		t.Error("it released the other one")
	}
}
