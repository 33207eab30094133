package gooselock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"testing/fstest"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/backend/memlock"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"
	"github.com/pressly/goose/v3/lock/locktesting"
	_ "modernc.org/sqlite"
)

// lockers makes Lockers of different processes, as far as the store can tell.
func lockers(t *testing.T, opts ...distlock.LockOption) func() *Locker {
	store := memlock.NewStore()
	return func() *Locker {
		c, err := distlock.New(store.Connect(), nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return New(c.Mutex("migrations", opts...))
	}
}

func open(t *testing.T, path string) *sql.DB {
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(60000)")
	if err != nil {
		t.Fatal(err)
	}
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
		p, err := goose.NewProvider(goose.DialectSQLite3, open(t, path), migrations, goose.WithLocker(next()))
		if err != nil {
			t.Fatal(err)
		}
		return p
	})
}

// goose's own test: of many lockers one holds, and the others give up in time.
func TestLockers(t *testing.T) {
	next := lockers(t)
	locktesting.TestConcurrentLocking(t, open(t, filepath.Join(t.TempDir(), "db")),
		func(*testing.T) lock.Locker { return next() }, time.Second)
}

func TestUnlock(t *testing.T) {
	l := lockers(t)()
	if err := l.Unlock(context.Background(), nil); err == nil {
		t.Error("a lock that is not held was unlocked")
	}
	for range 2 {
		if err := l.Lock(context.Background(), nil); err != nil {
			t.Fatal(err)
		}
		if err := l.Unlock(context.Background(), nil); err != nil {
			t.Fatal(err)
		}
	}
}

// An Unlock after a loss does not release the lock that another call has taken since.
func TestUnlockAfterALoss(t *testing.T) {
	next := lockers(t, distlock.MaxHold(50*time.Millisecond), distlock.WithTTL(time.Second))
	l := next()
	if err := l.Lock(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	first := l.leases[0]
	<-first.Context().Done()
	if err := l.Lock(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	second := l.leases[1]
	if err := l.Unlock(t.Context(), nil); !errors.Is(err, distlock.ErrLost) {
		t.Errorf("unlock of the lost one: %v", err)
	}
	if errors.Is(second.Err(), distlock.ErrReleased) {
		t.Error("it released the other one")
	}
}
