package pglock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/distlock/distlock/driver"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
)

// database is the user's database with its known properties.
type database struct {
	db      *sql.DB
	opts    Options // with defaults
	version int     // as in server_version_num: 150018
	user    string
	name    string // for Caps.Name: "postgres://db1:5432/app?table=public.distlock_locks"
	pgx     bool   // connections are package stdlib's
	limit   int    // of connections, as far as known; 0: none
	owned   bool   // db is closed with the backend
	bounds  bool   // no statement waits long for a lock, by a setting of each connection
}

// close closes a handle that is owned. An idle connection that the server has ended already is no error: TLS
// can't say goodbye on it.
func (d *database) close() error {
	if !d.owned {
		return nil
	}
	err := d.db.Close()
	if errors.As(err, new(*net.OpError)) {
		return nil
	}
	return err
}

// pooled reports whether each statement may have another connection of the server.
func (d *database) pooled() bool { return d.opts.Pooler == TransactionPooler }

// queryArgs returns the first arguments of each statement. Behind a pooler pgx must not prepare
// statements, since they belong to a connection.
func (d *database) queryArgs() []any {
	if d.pooled() && d.pgx {
		return []any{pgx.QueryExecModeExec}
	}
	return nil
}

func (d *database) queryRow(ctx context.Context, query string, args ...any) *sql.Row {
	return d.db.QueryRowContext(ctx, query, append(d.queryArgs(), args...)...)
}

// oldest is the oldest supported version of PostgreSQL.
const oldest = 12

// serverFacts describe a server and a session.
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

// inspect reads the server's properties, and refuses a server that can't keep locks.
func (d *database) inspect(ctx context.Context) error {
	conn, err := d.db.Conn(ctx)
	if err != nil {
		return explainOpen(err)
	}
	f, pg, err := d.queryFacts(ctx, conn)
	if err := errors.Join(err, conn.Close()); err != nil {
		return explainOpen(err)
	}
	if err := f.check(); err != nil {
		return err
	}
	d.version, d.user = f.version, f.user
	if d.name = d.opts.Name; d.name == "" {
		d.name = coordinatorName(f, pg)
	}
	d.pgx = pg != nil
	return d.checkPooler(f, pg)
}

// queryFacts queries a connection, and returns pgx's connection below it, if there is one. It takes one
// trip, which works behind every pooler.
func (d *database) queryFacts(ctx context.Context, conn *sql.Conn) (f serverFacts, pg *pgx.Conn, err error) {
	err = conn.Raw(func(raw any) error {
		if c, ok := raw.(*stdlib.Conn); ok {
			pg = c.Conn()
		}
		return nil
	})
	if err != nil {
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

// checkPooler refuses a pooler that was not declared. A pooler makes up the process number that a client
// sees.
func (d *database) checkPooler(f serverFacts, pg *pgx.Conn) error {
	switch {
	case d.opts.Pooler != "":
		return nil
	case pg != nil && pg.PgConn().PID() != f.pid:
		return fmt.Errorf("%w: there is a pooler or proxy in between: say pooler=%s if each connection keeps its connection of the server, and pooler=%s if not (Options.Pooler)", driver.ErrInvalid, SessionPooler, TransactionPooler)
	case pg == nil && d.opts.Strategy == Advisory:
		return fmt.Errorf("%w: with a driver other than pgx a pooler in transaction mode would not be noticed, and break strategy %s: say pooler=%s if there is none (Options.Pooler)", driver.ErrInvalid, Advisory, SessionPooler)
	}
	return nil
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
		why = fmt.Sprintf("database %s has the encoding %s; want UTF8, which can encode every lock's name", f.database, f.encoding)
	case f.client != "UTF8":
		why = fmt.Sprintf("the session has client_encoding=%s; want UTF8, which the driver sends", f.client)
	default:
		return nil
	}
	return fmt.Errorf("%w: %s", driver.ErrInvalid, why)
}

// coordinatorName returns the database's address, whatever the order of hosts in the URL. With a driver
// other than pgx the URL's addresses are unknown, so it uses the server's own.
func coordinatorName(f serverFacts, pg *pgx.Conn) string {
	hosts := []string{address(f.addr, uint16(f.port))}
	if pg != nil {
		config := pg.Config()
		hosts = []string{address(config.Host, config.Port)}
		for _, other := range config.Fallbacks {
			hosts = append(hosts, address(other.Host, other.Port))
		}
		slices.Sort(hosts)
	}
	return "postgres://" + strings.Join(slices.Compact(hosts), ",") + "/" + f.database
}

// address returns a host and port; a Unix socket is on this host, as localhost is.
func address(host string, port uint16) string {
	if host == "" || strings.HasPrefix(host, "/") || strings.HasPrefix(host, "@") {
		host = "localhost"
	}
	if port == 0 {
		port = 5432
	}
	return net.JoinHostPort(host, strconv.Itoa(int(port)))
}
