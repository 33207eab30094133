package pglock

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
)

const (
	// maxConns bounds a pool of our own unless its URL does. More write no faster, and a server has a hundred
	// connections for all its users.
	maxConns = 16

	// mostConns bounds parameter max_connections: it is more than a server can have.
	mostConns = 100_000

	// maxIdleTime is for how long a connection is kept that nobody uses.
	maxIdleTime = time.Minute
)

// openPool makes a pool of our own. Before a connection is used again a look at its socket
// says whether it is alive: what is sent to a server that has gone would have an unknown
// outcome.
func openPool(config *pgx.ConnConfig, limit int) *sql.DB {
	db := stdlib.OpenDB(*config,
		stdlib.OptionShouldPing(func(_ context.Context, p stdlib.ShouldPingParams) bool {
			return !canPeek && p.IdleDuration > time.Second
		}),
		stdlib.OptionResetSession(func(_ context.Context, pg *pgx.Conn) error {
			if !socketAlive(pg.PgConn().Conn()) {
				return sqldriver.ErrBadConn
			}
			return nil
		}))
	db.SetMaxOpenConns(limit)
	db.SetMaxIdleConns(maxConns)
	db.SetConnMaxIdleTime(maxIdleTime)
	return db
}
