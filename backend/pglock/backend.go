package pglock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/connlock"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
)

// strategy is one way to keep locks. Methods that it does not support return driver.ErrSkip.
type strategy interface {
	driver.Backend
	driver.Watcher
	driver.Inspector
}

// Backend keeps locks in PostgreSQL. It is safe for concurrent use.
type Backend struct {
	strategy
	database *database
	once     sync.Once
	err      error
}

// New makes a backend from the user's own database handle. Close leaves the handle open, and its limits
// are not changed. Its driver should be pgx's (package stdlib): with another one, Row polls
// instead of listening.
func New(ctx context.Context, db *sql.DB, opts *Options) (*Backend, error) {
	if db == nil {
		return nil, fmt.Errorf("%w: the database handle is nil", driver.ErrInvalid)
	}
	return start(ctx, &database{db: db, limit: db.Stats().MaxOpenConnections}, opts)
}

// NewPool is New for a pgx pool.
func NewPool(ctx context.Context, pool *pgxpool.Pool, opts *Options) (*Backend, error) {
	if pool == nil {
		return nil, fmt.Errorf("%w: the pool is nil", driver.ErrInvalid)
	}
	limit := int(pool.Config().MaxConns)
	db := stdlib.OpenDBFromPool(pool)
	db.SetMaxOpenConns(limit)
	return start(ctx, &database{db: db, limit: limit, owned: true}, opts)
}

// start makes a backend. If it fails, it closes a database handle that is owned.
func start(ctx context.Context, d *database, opts *Options) (*Backend, error) {
	b := &Backend{database: d}
	if err := b.start(ctx, opts); err != nil {
		return nil, errors.Join(err, d.close())
	}
	return b, nil
}

func (b *Backend) start(ctx context.Context, opts *Options) (err error) {
	if b.database.opts, err = opts.complete(); err != nil {
		return err
	}
	if err := b.database.inspect(ctx); err != nil {
		return fmt.Errorf("pglock: open: %w", err)
	}
	if b.database.opts.Strategy == Advisory {
		b.strategy, err = newAdvisory(ctx, b.database)
	} else {
		b.strategy, err = newRow(ctx, b.database)
	}
	return err
}

// Close ends the backend's goroutines and closes its connections. Holds of Row last until
// their TTLs have passed; holds of Advisory end.
func (b *Backend) Close() error {
	b.once.Do(func() { b.err = errors.Join(b.strategy.Close(), b.database.close()) })
	return b.err
}

// Commit runs work in a transaction on the connection that has the lock, and commits it: the work is stored if and
// only if the lock was held to the end. It is for strategy [Advisory]; Row returns ErrUnsupported. The owner is the
// result of a lease's method Owner. The lock is held until it is unlocked.
//
// If work returns an error, or ctx has ended, nothing of the work is stored. If the hold is lost, Commit returns ErrLost, and
// the work has not begun or is not stored. If the server does not answer the commit, the error says that the outcome is
// unknown, and the hold is lost.
//
// The lease is not renewed while the work runs. The work must end within the rest of its TTL;
// the server ends a transaction that is silent for a TTL. The work must not end the transaction
// itself.
func (b *Backend) Commit(ctx context.Context, owner string, work func(tx *sql.Tx) error) error {
	if a, ok := b.strategy.(*connlock.Backend); ok {
		return a.Commit(ctx, owner, work)
	}
	return fmt.Errorf("%w: pglock: Commit is for strategy %s", driver.ErrUnsupported, Advisory)
}

// sqlFree treats a superuser like any other user: connections reserved for administrators are not
// counted. Of another user's session only the database and the user are visible. Apart from
// parallel workers only client sessions have both.
const sqlFree = `SELECT least(
	current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
		- coalesce(current_setting('reserved_connections', true)::int, 0) - count(*),
	(SELECT nullif(rolconnlimit, -1) FROM pg_roles WHERE rolname = session_user) - count(*) FILTER (WHERE usename = session_user),
	(SELECT nullif(datconnlimit, -1) FROM pg_database WHERE datname = current_database()) - count(*) FILTER (WHERE datname = current_database()))
	FROM pg_stat_activity WHERE datid IS NOT NULL AND usesysid IS NOT NULL`

// FreeConnections returns how many more connections the server would now accept from the backend's
// user, by the limits of the server, the user and the database. Connections reserved for
// administrators do not count. A pooler in between may accept fewer.
func (b *Backend) FreeConnections(ctx context.Context) (free int, err error) {
	err = b.database.queryRow(ctx, sqlFree).Scan(&free)
	return max(free, 0), explain(err)
}
