package pglock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"

	"github.com/distlock/distlock/driver"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
)

// strategy is what Backend is made of. Methods that one lacks answer driver.ErrSkip.
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

var (
	_ driver.Backend   = (*Backend)(nil)
	_ driver.Watcher   = (*Backend)(nil)
	_ driver.Inspector = (*Backend)(nil)
)

// database is the database as a strategy finds it.
type database struct {
	db        *sql.DB
	opts      Options // complete
	version   int     // as server_version_num has it: 150018
	user      string
	name      string // for Caps.Name: "postgres://db1:5432/app?table=public.distlock_locks"
	pgx       bool   // connections are those of package stdlib
	unproxied bool   // they seem to be the server's own
	pooled    bool   // a pooler gives each transaction another connection
	limit     int    // of connections, as far as it is known; 0: none
	owned     bool   // db is closed with the backend
}

// New makes a backend of the user's own database handle, which stays the user's: Close
// leaves it open, and its limits are not changed. The driver should be pgx's (package
// stdlib); with another Row polls instead of listening.
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

// start makes a backend of a site that knows its db only. It closes one that is owned if
// it fails.
func start(ctx context.Context, s *database, opts *Options) (*Backend, error) {
	b := &Backend{database: s}
	err := b.start(ctx, opts)
	if err != nil {
		return nil, errors.Join(err, s.close())
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
	switch b.database.opts.Strategy {
	case Advisory:
		if err := b.database.unpooled(); err != nil {
			return err
		}
		b.strategy, err = newAdvisory(ctx, b.database)
	default:
		b.strategy, err = newRow(ctx, b.database)
	}
	return err
}

// Close ends the backend's goroutines, and the connections that it held or opened. What is
// held by Row stays until its TTL has passed; what is held by Advisory is let go.
func (b *Backend) Close() error {
	b.once.Do(func() { b.err = errors.Join(b.strategy.Close(), b.database.close()) })
	return b.err
}

func (s *database) close() error {
	if !s.owned {
		return nil
	}
	return s.db.Close()
}

// queryArgs is what a statement's arguments begin with. Behind a pooler pgx is not to prepare
// statements, which belong to a connection.
func (s *database) queryArgs() []any {
	if s.pooled && s.pgx {
		return []any{pgx.QueryExecModeExec}
	}
	return nil
}

// queryRow and rows run a query.
func (s *database) queryRow(ctx context.Context, query string, args ...any) *sql.Row {
	return s.db.QueryRowContext(ctx, query, append(s.queryArgs(), args...)...)
}

func (s *database) query(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	return s.db.QueryContext(ctx, query, append(s.queryArgs(), args...)...)
}
