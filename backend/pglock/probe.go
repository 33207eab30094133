package pglock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/distlock/distlock/driver"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
)

// oldest is the oldest version of PostgreSQL that this package is for.
const oldest = 12

// serverFacts are what a server says of itself and of the session.
type serverFacts struct {
	version           int
	replica, readOnly bool
	encoding, client  string // encodings of the database and of the session
	database          string
	user              string
	pid               uint32 // of the process that serves the session
	addr              string // of the server's end of the connection; empty for a Unix socket
	port              int
}

const sqlFacts = `SELECT current_setting('server_version_num')::int, pg_is_in_recovery(),
	current_setting('transaction_read_only') = 'on', current_setting('server_encoding'), current_setting('client_encoding'),
	current_database(), current_user, pg_backend_pid(), coalesce(host(inet_server_addr()), ''), coalesce(inet_server_port(), 0)`

// inspect finds out what there is, and refuses what no locks can be kept in.
func (s *database) inspect(ctx context.Context) error {
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return explain(err)
	}
	f, pg, err := s.queryFacts(ctx, conn)
	if err := errors.Join(err, conn.Close()); err != nil {
		return explain(err)
	}
	if err := f.check(); err != nil {
		return err
	}
	s.version, s.user = f.version, f.user
	if s.name = s.opts.Name; s.name == "" {
		s.name = coordinatorName(f, pg)
	}
	s.pgx = pg != nil
	s.unproxied = s.pgx && pg.PgConn().PID() == f.pid // a pooler makes up the number of the process
	if s.opts.Strategy == Row && (!s.pgx || s.unproxied) {
		return nil
	}
	s.pooled = true // so that nothing is prepared
	s.pooled, err = s.findPooler(ctx)
	return err
}

// queryFacts asks a connection, and tells which one of pgx's it is, if it is. It does so in
// one trip, which works behind every pooler.
func (s *database) queryFacts(ctx context.Context, conn *sql.Conn) (f serverFacts, pg *pgx.Conn, err error) {
	if pg, err = pgxOf(conn); err != nil {
		return f, nil, err
	}
	var args []any
	if pg != nil {
		args = append(args, pgx.QueryExecModeExec)
	}
	err = conn.QueryRowContext(ctx, sqlFacts, args...).Scan(&f.version, &f.replica, &f.readOnly, &f.encoding, &f.client,
		&f.database, &f.user, &f.pid, &f.addr, &f.port)
	return f, pg, err
}

// pgxOf is the connection as pgx has it; nil if the driver is another.
func pgxOf(conn *sql.Conn) (pg *pgx.Conn, err error) {
	err = conn.Raw(func(raw any) error {
		if c, ok := raw.(*stdlib.Conn); ok {
			pg = c.Conn()
		}
		return nil
	})
	return pg, err
}

// check refuses servers that can't keep locks.
func (f *serverFacts) check() error {
	why := ""
	switch {
	case f.version < oldest*10000:
		why = fmt.Sprintf("the server is PostgreSQL %d.%d; want %d or later", f.version/10000, f.version%10000, oldest)
	case f.replica:
		why = "the server is a replica, which can't be written; name the primary, or all of them and target_session_attrs=read-write"
	case f.readOnly:
		why = fmt.Sprintf("transactions are read-only here; set default_transaction_read_only=off for user %s, or in the URL", f.user)
	case f.encoding != "UTF8":
		why = fmt.Sprintf("database %s has the encoding %s; want UTF8, in which every lock's name can be written", f.database, f.encoding)
	case f.client != "UTF8":
		why = fmt.Sprintf("the session has client_encoding=%s; want UTF8, in which the driver sends", f.client)
	default:
		return nil
	}
	return fmt.Errorf("%w: %s", driver.ErrInvalid, why)
}
