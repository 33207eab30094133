package bench

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"time"

	"github.com/distlock/distlock/internal/testkit/testserver"
	"github.com/go-sql-driver/mysql"
)

// rawMySQL opens a pool of n connections that sends each statement in one round trip, for mutexes of one kind.
func rawMySQL(n int, kind func(db *sql.DB, name string, ttl time.Duration) (mutex, error)) func(string, time.Duration) (client, error) {
	return func(url string, ttl time.Duration) (client, error) {
		db, err := newPool("mysql", testserver.MariaDBSource(url), n)
		if err != nil {
			return nil, err
		}
		newMutex := func(name string) mutex { return orFailing(kind(db, name, ttl)) }
		return sqlClient{newMutex, func() { db.Close() }}, nil
	}
}

// insertMySQL inserts a mutex's permanent row.
func insertMySQL(db *sql.DB, name string) error {
	_, err := db.Exec("INSERT IGNORE INTO bench_rows (k) VALUES (?)", name)
	return err
}

// getLock locks by GET_LOCK and RELEASE_LOCK on a connection of the pool.
type getLock struct {
	db   *sql.DB
	name string
	conn *sql.Conn
}

func newGetLock(db *sql.DB, name string, _ time.Duration) (mutex, error) {
	return &getLock{db: db, name: name}, nil
}

var errNotGranted = errors.New("GET_LOCK did not grant")

func (g *getLock) lock(ctx context.Context) (err error) {
	if g.conn, err = g.db.Conn(ctx); err != nil {
		return err
	}
	var granted sql.NullInt64
	err = g.conn.QueryRowContext(ctx, "SELECT GET_LOCK(?, 60)", g.name).Scan(&granted)
	if err == nil && granted.Int64 != 1 {
		err = errNotGranted
	}
	if err != nil {
		g.conn.Close()
	}
	return err
}

func (g *getLock) unlock() error {
	defer g.conn.Close()
	_, err := g.conn.ExecContext(context.Background(), "DO RELEASE_LOCK(?)", g.name)
	return err
}

// fencedGetLock also increments a counter in a row.
type fencedGetLock struct {
	getLock
	numbered
}

func newFencedGetLock(db *sql.DB, name string, _ time.Duration) (mutex, error) {
	return &fencedGetLock{getLock: getLock{db: db, name: name}}, insertMySQL(db, name)
}

func (f *fencedGetLock) lock(ctx context.Context) error {
	if err := f.getLock.lock(ctx); err != nil {
		return err
	}
	r, err := f.conn.ExecContext(ctx, "UPDATE bench_rows SET fence = LAST_INSERT_ID(fence + 1) WHERE k = ?", f.name)
	if err != nil {
		f.unlock()
		return err
	}
	n, err := r.LastInsertId()
	f.number = uint64(n)
	return err
}

// forUpdateMySQL locks by SELECT … FOR UPDATE in a transaction.
type forUpdateMySQL struct {
	db   *sql.DB
	name string
	tx   *sql.Tx
}

func newForUpdateMySQL(db *sql.DB, name string, _ time.Duration) (mutex, error) {
	return &forUpdateMySQL{db: db, name: name}, insertMySQL(db, name)
}

func (m *forUpdateMySQL) lock(ctx context.Context) (err error) {
	if m.tx, err = m.db.BeginTx(context.Background(), nil); err != nil {
		return err
	}
	var k string
	if err = m.tx.QueryRowContext(ctx, "SELECT k FROM bench_rows WHERE k = ? FOR UPDATE", m.name).Scan(&k); err != nil {
		m.tx.Rollback()
	}
	return err
}

func (m *forUpdateMySQL) unlock() error { return m.tx.Commit() }

// updateMySQL locks by one conditional UPDATE, and releases by another.
type updateMySQL struct {
	db *sql.DB
	rowMutex
	numbered
}

func newUpdateMySQL(db *sql.DB, name string, ttl time.Duration) (mutex, error) {
	return &updateMySQL{db: db, rowMutex: newRowMutex(name, ttl)}, insertMySQL(db, name)
}

const nowMySQL = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"

func (m *updateMySQL) lock(ctx context.Context) error {
	return poll(ctx, func() (bool, error) {
		r, err := m.db.ExecContext(ctx, "UPDATE bench_rows SET owner = ?, until = "+nowMySQL+" + ?, fence = LAST_INSERT_ID(fence + 1)"+
			" WHERE k = ? AND (owner IS NULL OR until < "+nowMySQL+")", m.owner, m.ttl.Microseconds(), m.name)
		if err != nil {
			return false, err
		}
		n, err := r.LastInsertId()
		m.number = uint64(n)
		return n != 0, err
	})
}

func (m *updateMySQL) unlock() error {
	_, err := m.db.Exec("UPDATE bench_rows SET owner = NULL WHERE k = ? AND owner = ?", m.name, m.owner)
	return err
}

// insertDeleteMySQL inserts and deletes a row with a unique key. Deadlocks must be retried.
type insertDeleteMySQL struct {
	db *sql.DB
	rowMutex
}

func newInsertDeleteMySQL(db *sql.DB, name string, ttl time.Duration) (mutex, error) {
	return &insertDeleteMySQL{db, newRowMutex(name, ttl)}, nil
}

// The errors of MySQL for an INSERT.
const (
	duplicate = 1062
	deadlock  = 1213
)

func isMySQL(err error, numbers ...uint16) bool {
	var answer *mysql.MySQLError
	return errors.As(err, &answer) && slices.Contains(numbers, answer.Number)
}

func (m *insertDeleteMySQL) lock(ctx context.Context) error {
	return poll(ctx, func() (bool, error) {
		_, err := m.db.ExecContext(ctx, "INSERT INTO bench_keys VALUES (?, ?, "+nowMySQL+" + ?)", m.name, m.owner, m.ttl.Microseconds())
		if isMySQL(err, duplicate, deadlock) {
			return false, nil
		}
		return err == nil, err
	})
}

func (m *insertDeleteMySQL) unlock() error {
	for {
		_, err := m.db.Exec("DELETE FROM bench_keys WHERE k = ? AND owner = ?", m.name, m.owner)
		if !isMySQL(err, deadlock) {
			return err
		}
	}
}
