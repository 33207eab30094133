package bench

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"net/url"
	"path/filepath"
	"testing"
	"time"

	_ "modernc.org/sqlite" // the driver "sqlite" of database/sql

	"github.com/distlock/distlock/internal/testkit/must"
)

// connections is the size of a raw pool, all open from the start: one for each goroutine of any
// scenario.
const connections = 16

// openAll opens n connections of a pool.
func openAll[C any](n int, connect func(context.Context) (C, error), release func(C)) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var open []C
	for range n {
		c, err := connect(ctx)
		if err != nil {
			return err
		}
		open = append(open, c)
	}
	for _, c := range open {
		release(c)
	}
	return nil
}

// newPool opens a pool of database/sql with n connections.
func newPool(driver, source string, n int) (*sql.DB, error) {
	db, err := sql.Open(driver, source)
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(n)
	db.SetMaxIdleConns(n)
	return db, openAll(n, db.Conn, func(c *sql.Conn) { c.Close() })
}

// pause is the time between two attempts of raw locks that can't wait in the database.
const pause = time.Millisecond

// poll retries until the lock is granted.
func poll(ctx context.Context, try func() (bool, error)) error {
	for {
		ok, err := try()
		if ok || err != nil {
			return err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// sqlClient creates mutexes on a pool of connections.
type sqlClient struct {
	newMutex func(name string) mutex
	end      func()
}

func (c sqlClient) mutex(name string) mutex { return c.newMutex(name) }
func (c sqlClient) close()                  { c.end() }

// orFailing returns m, or a mutex that returns err.
func orFailing(m mutex, err error) mutex {
	if err != nil {
		return failing{err}
	}
	return m
}

// rowMutex is a mutex that has a row and a name for itself.
type rowMutex struct {
	name, owner string
	ttl         time.Duration
}

func newRowMutex(name string, ttl time.Duration) rowMutex {
	return rowMutex{name: name, owner: rand.Text(), ttl: ttl}
}

// numbered is the part of a mutex that numbers its grants.
type numbered struct{ number uint64 }

func (n *numbered) fence() uint64 { return n.number }

// sqliteFile is an SQLite file, which has no server. The raw locks use another file beside it, since
// distlock refuses other programs' tables.
type sqliteFile struct{ path string }

const rawFile = ".raw"

func startSQLite(tb testing.TB) coordinator {
	tb.Helper()
	path := filepath.Join(tb.TempDir(), "locks.db")
	db := must.Get(openSQLite(path + rawFile))(tb)
	defer db.Close()
	execAll(tb, db, `CREATE TABLE bench_rows (k TEXT PRIMARY KEY, owner TEXT, until INTEGER NOT NULL DEFAULT 0, fence INTEGER NOT NULL DEFAULT 0) WITHOUT ROWID`)
	return sqliteFile{path}
}

func (f sqliteFile) Addr() string { return f.path }

func (f sqliteFile) version() (v string, err error) {
	db, err := openSQLite(f.path + rawFile)
	if err != nil {
		return "", err
	}
	defer db.Close()
	return v, db.QueryRow("SELECT 'SQLite ' || sqlite_version()").Scan(&v)
}

// usage is zero: the clients do the work.
func (sqliteFile) usage(contender) (usage, error) { return usage{}, nil }

// openSQLite opens one connection, since a file has one writer, with distlock's default settings.
func openSQLite(path string) (*sql.DB, error) {
	q := url.Values{"_txlock": {"immediate"}, "_pragma": {"busy_timeout(20000)", "journal_mode(wal)", "synchronous(normal)"}}
	db, err := sql.Open("sqlite", "file:"+path+"?"+q.Encode())
	if err == nil {
		db.SetMaxOpenConns(1)
	}
	return db, err
}

func openRawSQLite(path string, ttl time.Duration) (client, error) {
	db, err := openSQLite(path + rawFile)
	if err != nil {
		return nil, err
	}
	take, err := db.Prepare("UPDATE bench_rows SET owner = ?2, until = ?3 + ?4, fence = fence + 1 WHERE k = ?1 AND (owner IS NULL OR until < ?3) RETURNING fence")
	if err != nil {
		return nil, err
	}
	drop, err := db.Prepare("UPDATE bench_rows SET owner = NULL WHERE k = ? AND owner = ?")
	newMutex := func(name string) mutex {
		if _, err := db.Exec("INSERT OR IGNORE INTO bench_rows (k) VALUES (?)", name); err != nil {
			return failing{err}
		}
		return &sqliteMutex{take: take, drop: drop, rowMutex: newRowMutex(name, ttl)}
	}
	return sqlClient{newMutex, func() { db.Close() }}, err
}

type sqliteMutex struct {
	take, drop *sql.Stmt
	rowMutex
	numbered
}

func (m *sqliteMutex) lock(ctx context.Context) error {
	return poll(ctx, func() (bool, error) {
		row := m.take.QueryRowContext(ctx, m.name, m.owner, time.Now().UnixMicro(), m.ttl.Microseconds())
		err := row.Scan(&m.number)
		if errors.Is(err, sql.ErrNoRows) {
			return false, nil
		}
		return err == nil, err
	})
}

func (m *sqliteMutex) unlock() error {
	_, err := m.drop.Exec(m.name, m.owner)
	return err
}
