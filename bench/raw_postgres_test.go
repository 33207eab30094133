package bench

import (
	"context"
	"errors"
	"hash/fnv"
	"strconv"
	"time"

	"cirello.io/pglock"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/lib/pq" // the driver that cirello.io/pglock requires
)

// rawPostgres opens a pgx pool of n connections, which prepares each statement once, for mutexes of one kind.
func rawPostgres(n int, kind func(db *pgxpool.Pool, name string, ttl time.Duration) (mutex, error)) func(string, time.Duration) (client, error) {
	return func(url string, ttl time.Duration) (client, error) {
		db, err := pgxpool.New(context.Background(), url+"&pool_max_conns="+strconv.Itoa(n))
		if err != nil {
			return nil, err
		}
		newMutex := func(name string) mutex { return orFailing(kind(db, name, ttl)) }
		return sqlClient{newMutex, db.Close}, openAll(n, db.Acquire, (*pgxpool.Conn).Release)
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

func (a *advisory) lock(ctx context.Context) (err error) {
	if a.conn, err = a.db.Acquire(ctx); err != nil {
		return err
	}
	if _, err = a.conn.Exec(ctx, "SELECT pg_advisory_lock($1)", a.key); err != nil {
		a.conn.Release()
	}
	return err
}

func (a *advisory) unlock() error {
	defer a.conn.Release()
	_, err := a.conn.Exec(context.Background(), "SELECT pg_advisory_unlock($1)", a.key)
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

func (f *fencedAdvisory) lock(ctx context.Context) error {
	if err := f.advisory.lock(ctx); err != nil {
		return err
	}
	err := f.conn.QueryRow(ctx, "SELECT nextval('bench_fences')").Scan(&f.number)
	if err != nil {
		f.unlock()
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

func (t *inTransaction) lock(ctx context.Context) (err error) {
	if t.tx, err = t.db.Begin(ctx); err != nil {
		return err
	}
	if err = t.take(ctx, t.tx); err != nil {
		t.tx.Rollback(context.Background())
	}
	return err
}

func (t *inTransaction) unlock() error { return t.tx.Commit(context.Background()) }

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

func (p *updatePostgres) lock(ctx context.Context) error {
	return poll(ctx, func() (bool, error) {
		row := p.db.QueryRow(ctx, "UPDATE bench_rows SET owner = $2, until = "+nowPostgres+" + $3, fence = fence + 1"+
			" WHERE k = $1 AND (owner IS NULL OR until < "+nowPostgres+") RETURNING fence", p.name, p.owner, p.ttl.Microseconds())
		err := row.Scan(&p.number)
		if errors.Is(err, pgx.ErrNoRows) {
			return false, nil
		}
		return err == nil, err
	})
}

func (p *updatePostgres) unlock() error {
	_, err := p.db.Exec(context.Background(), "UPDATE bench_rows SET owner = NULL WHERE k = $1 AND owner = $2", p.name, p.owner)
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

func (p *insertDeletePostgres) lock(ctx context.Context) error {
	return poll(ctx, func() (bool, error) {
		r, err := p.db.Exec(ctx, "INSERT INTO bench_keys VALUES ($1, $2, "+nowPostgres+" + $3) ON CONFLICT DO NOTHING", p.name, p.owner, p.ttl.Microseconds())
		return r.RowsAffected() == 1, err
	})
}

func (p *insertDeletePostgres) unlock() error {
	_, err := p.db.Exec(context.Background(), "DELETE FROM bench_keys WHERE k = $1 AND owner = $2", p.name, p.owner)
	return err
}

// openCirello uses cirello.io/pglock like its README. A refused client waits for the whole lease, even
// if the lock is released earlier.
func openCirello(lease time.Duration) func(string, time.Duration) (client, error) {
	return func(url string, _ time.Duration) (client, error) {
		db, err := newPool("postgres", url, connections)
		if err != nil {
			return nil, err
		}
		c, err := pglock.New(db, pglock.WithLeaseDuration(lease), pglock.WithHeartbeatFrequency(lease/4))
		if err != nil {
			return nil, err
		}
		newMutex := func(name string) mutex { return &cirelloMutex{c: c, name: name} }
		return sqlClient{newMutex, func() { db.Close() }}, c.TryCreateTable()
	}
}

type cirelloMutex struct {
	c    *pglock.Client
	name string
	held *pglock.Lock
}

func (m *cirelloMutex) lock(ctx context.Context) (err error) {
	m.held, err = m.c.AcquireContext(ctx, m.name)
	return err
}

func (m *cirelloMutex) unlock() error { return m.c.Release(m.held) }
