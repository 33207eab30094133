package bench

import (
	"context"
	"errors"
	"hash/fnv"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// rawPostgres opens a pgx pool, which prepares each statement once, for mutexes of one kind.
func rawPostgres(kind func(db *pgxpool.Pool, name string, ttl time.Duration) (mutex, error)) func(string, time.Duration) (client, error) {
	return func(url string, ttl time.Duration) (client, error) {
		db, err := pgxpool.New(context.Background(), url+"&pool_max_conns="+strconv.Itoa(connections))
		if err != nil {
			return nil, err
		}
		newMutex := func(name string) mutex { return orFailing(kind(db, name, ttl)) }
		return sqlClient{newMutex, db.Close}, openAll(db.Acquire, (*pgxpool.Conn).Release)
	}
}

// insertPostgres inserts a mutex's permanent row.
func insertPostgres(db *pgxpool.Pool, name string) error {
	_, err := db.Exec(context.Background(), "INSERT INTO bench_rows (k) VALUES ($1) ON CONFLICT DO NOTHING", name)
	return err
}

// advisory locks by pg_advisory_lock and pg_advisory_unlock on a connection of the pool.
type advisory struct {
	db   *pgxpool.Pool
	key  int64
	conn *pgxpool.Conn
}

func newAdvisory(db *pgxpool.Pool, name string, _ time.Duration) (mutex, error) {
	return &advisory{db: db, key: keyOf(name)}, nil
}

func keyOf(name string) int64 {
	h := fnv.New64a()
	h.Write([]byte(name))
	return int64(h.Sum64())
}

func (m *advisory) lock(ctx context.Context) (err error) {
	if m.conn, err = m.db.Acquire(ctx); err != nil {
		return err
	}
	if _, err = m.conn.Exec(ctx, "SELECT pg_advisory_lock($1)", m.key); err != nil {
		m.conn.Release()
	}
	return err
}

func (m *advisory) unlock() error {
	defer m.conn.Release()
	_, err := m.conn.Exec(context.Background(), "SELECT pg_advisory_unlock($1)", m.key)
	return err
}

// fencedAdvisory also takes a number from a sequence.
type fencedAdvisory struct {
	advisory
	numbered
}

func newFencedAdvisory(db *pgxpool.Pool, name string, _ time.Duration) (mutex, error) {
	return &fencedAdvisory{advisory: advisory{db: db, key: keyOf(name)}}, nil
}

func (m *fencedAdvisory) lock(ctx context.Context) error {
	if err := m.advisory.lock(ctx); err != nil {
		return err
	}
	err := m.conn.QueryRow(ctx, "SELECT nextval('bench_fences')").Scan(&m.number)
	if err != nil {
		m.unlock()
	}
	return err
}

// inTransaction is a lock that ends with its transaction.
type inTransaction struct {
	db   *pgxpool.Pool
	tx   pgx.Tx
	take func(ctx context.Context, tx pgx.Tx) error
}

func newAdvisoryInTransaction(db *pgxpool.Pool, name string, _ time.Duration) (mutex, error) {
	key := keyOf(name)
	return &inTransaction{db: db, take: func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock($1)", key)
		return err
	}}, nil
}

func newForUpdatePostgres(db *pgxpool.Pool, name string, _ time.Duration) (mutex, error) {
	return &inTransaction{db: db, take: func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "SELECT FROM bench_rows WHERE k = $1 FOR UPDATE", name)
		return err
	}}, insertPostgres(db, name)
}

func (m *inTransaction) lock(ctx context.Context) (err error) {
	if m.tx, err = m.db.Begin(ctx); err != nil {
		return err
	}
	if err = m.take(ctx, m.tx); err != nil {
		m.tx.Rollback(context.Background())
	}
	return err
}

func (m *inTransaction) unlock() error { return m.tx.Commit(context.Background()) }

// updatePostgres locks by one conditional UPDATE, and releases by another.
type updatePostgres struct {
	db *pgxpool.Pool
	rowMutex
	numbered
}

func newUpdatePostgres(db *pgxpool.Pool, name string, ttl time.Duration) (mutex, error) {
	return &updatePostgres{db: db, rowMutex: newRowMutex(name, ttl)}, insertPostgres(db, name)
}

const nowPostgres = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"

func (m *updatePostgres) lock(ctx context.Context) error {
	return poll(ctx, func() (bool, error) {
		row := m.db.QueryRow(ctx, "UPDATE bench_rows SET owner = $2, until = "+nowPostgres+" + $3, fence = fence + 1"+
			" WHERE k = $1 AND (owner IS NULL OR until < "+nowPostgres+") RETURNING fence", m.name, m.owner, m.ttl.Microseconds())
		err := row.Scan(&m.number)
		if errors.Is(err, pgx.ErrNoRows) {
			return false, nil
		}
		return err == nil, err
	})
}

func (m *updatePostgres) unlock() error {
	_, err := m.db.Exec(context.Background(), "UPDATE bench_rows SET owner = NULL WHERE k = $1 AND owner = $2", m.name, m.owner)
	return err
}

// insertDeletePostgres inserts and deletes a row with a unique key.
type insertDeletePostgres struct {
	db *pgxpool.Pool
	rowMutex
}

func newInsertDeletePostgres(db *pgxpool.Pool, name string, ttl time.Duration) (mutex, error) {
	return &insertDeletePostgres{db, newRowMutex(name, ttl)}, nil
}

func (m *insertDeletePostgres) lock(ctx context.Context) error {
	return poll(ctx, func() (bool, error) {
		r, err := m.db.Exec(ctx, "INSERT INTO bench_keys VALUES ($1, $2, "+nowPostgres+" + $3) ON CONFLICT DO NOTHING", m.name, m.owner, m.ttl.Microseconds())
		return r.RowsAffected() == 1, err
	})
}

func (m *insertDeletePostgres) unlock() error {
	_, err := m.db.Exec(context.Background(), "DELETE FROM bench_keys WHERE k = $1 AND owner = $2", m.name, m.owner)
	return err
}
