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

func (d *database) query(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	return d.db.QueryContext(ctx, query, append(d.queryArgs(), args...)...)
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
		return explain(err)
	}
	f, pg, err := d.queryFacts(ctx, conn)
	if err := errors.Join(err, conn.Close()); err != nil {
		return explain(err)
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

// Codes of errors, as in appendix A of PostgreSQL's manual.
const (
	badLogin           = "28000" // no such role, or pg_hba.conf refuses it
	badPassword        = "28P01"
	noDatabase         = "3D000"
	noSchema           = "3F000"
	noTable            = "42P01"
	noColumn           = "42703"
	noRights           = "42501"
	noSetting          = "42704"
	noStatement        = "26000"
	badSetting         = "22023"
	duplicateTable     = "42P07"
	duplicateType      = "42710"
	duplicateKey       = "23505"
	duplicateStatement = "42P05"
	readOnly           = "25006"
	conflict           = "40001"
	deadlock           = "40P01"
	tooLong            = "22001"
	outOfRange         = "22003"
	badText            = "22021"
	idleTooLong        = "57P05"
	shuttingDown       = "57P01"
	lockTimeout        = "55P03"
	queueFull          = "54000" // and other exceeded limits
)

// sqlState returns the SQLSTATE of an error of any driver; empty if it has none.
func sqlState(err error) string {
	if e := (interface{ SQLState() string })(nil); errors.As(err, &e) {
		return e.SQLState()
	}
	return ""
}

// finalErrors are errors that retrying can't cure.
var finalErrors = map[string]string{
	badLogin:    "the user is not let in: check the name, and pg_hba.conf on the server",
	badPassword: "the user is not let in: the password is wrong, or has expired (ALTER ROLE … VALID UNTIL)",
	noDatabase:  "the database does not exist",
	noTable:     "the table is gone",
	noColumn:    "the table was changed",
	noRights:    "the user lacks a right",
	noSetting:   "a parameter of the URL is neither distlock's, pgx's nor the server's",
	badSetting:  "a parameter of the URL has a value that the server does not take",
	tooLong:     "a value is too long for its column",
	outOfRange:  "a number is too great for its column",
	badText:     "a text has bytes that the server does not take, such as 0",
	queueFull:   "this is more than the server's limits allow",
	readOnly:    "the server can't be written: it is a replica, or transactions are read-only",
}

// explain adds a cause to an error of the server, and ErrInvalid if retrying can't cure it.
func explain(err error) error {
	if err == nil || driver.Final(err) {
		return err
	}
	state := sqlState(err)
	why, final := finalErrors[state]
	switch {
	case final:
	case state == noStatement || state == duplicateStatement:
		return fmt.Errorf("prepared statements get lost, as behind a pooler in transaction mode: say pooler=%s (Options.Pooler): %w", TransactionPooler, err)
	case wrongPassword(err):
		why = finalErrors[badPassword]
	case strings.Contains(err.Error(), "unsupported startup parameter"):
		why = "a parameter of the URL is not known to the pooler (ignore_startup_parameters)"
	default:
		return err
	}
	return fmt.Errorf("%w: %s: %w", driver.ErrInvalid, why, err)
}

// wrongPassword reports whether a password was refused. PgBouncer has one code for all its refusals.
func wrongPassword(err error) bool {
	return sqlState(err) == badPassword || strings.Contains(err.Error(), "password authentication failed")
}

// explainCall is explain for a backend in use. A server that can't be written then has a successor, or
// will become one. A new connection of the pool that is not let in says nothing about the locks: the
// password or pg_hba.conf may have changed.
func explainCall(err error) error {
	switch state := sqlState(err); {
	case err == nil:
		return nil
	case wrongPassword(err):
		return fmt.Errorf("%s: %w", finalErrors[badPassword], err)
	case state == readOnly || state == badLogin || state == noDatabase:
		return fmt.Errorf("%s: %w", finalErrors[state], err)
	}
	return explain(err)
}

// explainConfig returns pgx's complaint about a URL, without the URL that it quotes.
func explainConfig(err error) error {
	why := err.Error()
	if i := strings.LastIndex(why, "`: "); i >= 0 {
		why = why[i+len("`: "):]
	}
	return fmt.Errorf("%w: URL: %s", driver.ErrInvalid, why)
}
