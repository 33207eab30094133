package bench

import (
	"context"
	"database/sql"
	"errors"
	"net/url"
	"path/filepath"
	"testing"
	"time"

	_ "modernc.org/sqlite" // the driver "sqlite" of database/sql
)

// sqliteFile is an SQLite file, which has no server. The raw locks use another file beside it, since
// distlock refuses other programs' tables.
type sqliteFile struct{ path string }

const rawFile = ".raw"

func startSQLite(tb testing.TB) coordinator {
	tb.Helper()
	path := filepath.Join(tb.TempDir(), "locks.db")
	db, err := openSQLite(path + rawFile)
	if err != nil {
		tb.Fatal(err)
	}
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
