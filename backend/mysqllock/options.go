package mysqllock

import (
	"cmp"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/netaddr"
	"github.com/distlock/distlock/internal/sqlname"
)

// Strategy is a way to keep locks in the database. All users of a table must use the same one.
type Strategy string

// The strategies.
const (
	// Row keeps one row under a unique key for each lock, which is never deleted, and changes its text
	// if that is still what was believed. It has all modes and fair queues. A free lock costs one
	// statement, a release one. Waiters are woken through one more connection of the process that
	// holds the lock. A lock is a lease, which ends by the server's clock after its TTL if the holder
	// died, and holds no connection. It is the default.
	Row Strategy = "row"

	// ForUpdate holds a row by SELECT … FOR UPDATE in a transaction that stays open, on a connection
	// of its own for each lock and each waiter. It is exclusive only. A lock ends with its connection.
	ForUpdate Strategy = "forupdate"

	// Session holds locks by GET_LOCK, on a connection of its own for each lock and each waiter. It is exclusive only. A lock ends
	// with its connection.
	Session Strategy = "session"
)

// mappedToRow has the names of textbook ways that are Row here, and why.
var mappedToRow = map[Strategy]string{
	"unique":  "its row stands under a unique key, and stays when the lock is free",
	"version": "its row is taken by compare-and-set on a version; for a version column of your own data there is package occ",
}

// strategies has all strategies, the default first, with their tables.
var strategies = []struct {
	name  Strategy
	table string
}{
	{Row, "distlock_locks"},
	{ForUpdate, "distlock_mutexes"},
	{Session, "distlock_sessions"},
}

// Strategies lists all strategies, the default first.
func Strategies() []Strategy {
	var all []Strategy
	for _, s := range strategies {
		all = append(all, s.name)
	}
	return all
}

func strategyNames() (names []string) {
	for _, s := range strategies {
		names = append(names, string(s.name))
	}
	return names
}

// Options for New and Schema. The zero value, like a nil pointer, means the defaults.
type Options struct {
	// Strategy is Row if empty.
	Strategy Strategy

	// Table is the table's name, optionally after a database name and a dot:
	// "locks", "app.locks". Letters, digits and underscores. Empty: distlock_locks for
	// Row, distlock_mutexes for ForUpdate, distlock_sessions for Session.
	Table string

	// Create makes the table if it is missing. Without it, a missing table is refused, and the error
	// says how to create it.
	Create bool

	// OneWriter promises that all users of the table write to the same node at any time. It is for
	// clusters whose nodes all accept writes. Without it, Row refuses a Galera cluster of
	// several nodes and a replication group with several primaries: a lease ends by the clock of the
	// node that is queried.
	OneWriter bool

	// Name identifies the database in Caps; it must be the same in every process, and no other database may have
	// it. The default has the server's own name, which a failover changes: a client of package httplock
	// then refuses a server that is started afterwards.
	Name string
}

func (o *Options) withDefaults() (Options, error) {
	var c Options
	if o != nil {
		c = *o
	}
	c.Strategy = cmp.Or(c.Strategy, Row)
	i := slices.Index(Strategies(), c.Strategy)
	if i < 0 {
		return c, unknownStrategy(c.Strategy)
	}
	c.Table = cmp.Or(c.Table, strategies[i].table)
	return c, checkTable(c.Table)
}

func unknownStrategy(s Strategy) error {
	if why := mappedToRow[s]; why != "" {
		return fmt.Errorf("%w: strategy %q: use row, which is the same: %s", driver.ErrInvalid, s, why)
	}
	return fmt.Errorf("%w: strategy %q: want one of %s", driver.ErrInvalid, s, strings.Join(strategyNames(), ", "))
}

// maxTable is the server's limit.
const maxTable = 64

func checkTable(name string) error {
	parts := strings.SplitN(name, ".", 2)
	for _, part := range parts {
		if !sqlname.Valid(part) {
			return fmt.Errorf("%w: table %q: want letters, digits and underscores, such as locks or app.locks", driver.ErrInvalid, name)
		}
	}
	if n := len(parts[len(parts)-1]); n > maxTable {
		return fmt.Errorf("%w: table %q has %d characters, at most %d are possible", driver.ErrInvalid, name, n, maxTable)
	}
	return nil
}

// quoted returns a table's name for statements.
func quoted(table string) string { return sqlname.Quote(table, true) }

// dialTimeout bounds the opening of a connection, as does the caller's context.
const dialTimeout = 5 * time.Second

// rowConns is how many connections the pool of strategy Row has at most. They are enough for thousands
// of calls a second; more would pile up in the server while a table is locked.
const rowConns = maxIdle

// mostConns is the greatest max_connections: no server can have more.
const mostConns = 100_000

// readURL returns the driver's configuration, how to log in, the options, and the limit of connections; 0 means no
// limit.
func readURL(u *url.URL, own netaddr.Credentials) (config *mysql.Config, l *login, opts *Options, limit int, err error) {
	p := driver.NewParams(u)
	config = readConfig(p)
	l, err = readLogin(u, p, config, own)
	errs := []error{err}
	opts = &Options{Strategy: Strategy(p.String("strategy", string(Row))), Table: p.String("table", ""), Create: p.Bool("create", false),
		OneWriter: p.Bool("onewriter", false), Name: p.String("name", "")}
	if !slices.Contains(Strategies(), opts.Strategy) {
		errs = append(errs, unknownStrategy(opts.Strategy))
	}
	usual := 0
	if opts.Strategy == Row {
		usual = rowConns
	}
	limit = p.Int("max_connections", usual, 1, mostConns)
	errs = append(errs, readAddress(u, p, config))
	return config, l, opts, limit, errors.Join(append(errs, p.Err())...)
}

// readConfig reads those parameters of the MySQL driver that make sense for locks.
func readConfig(p *driver.Params) *mysql.Config {
	c := mysql.NewConfig()
	c.Logger = &mysql.NopLogger{} // the errors contain the same
	c.InterpolateParams = true
	// A server that became a replica loses the pool's connections, so that they find the primary.
	c.RejectReadOnly = true
	c.Timeout = p.Duration("timeout", dialTimeout)
	c.ReadTimeout = p.Duration("readTimeout", 0)
	c.WriteTimeout = p.Duration("writeTimeout", 0)
	c.AllowCleartextPasswords = p.Bool("allowCleartextPasswords", false) // a cloud's tokens need it
	return c
}

// readAddress reads host and port, or the socket, and the database.
func readAddress(u *url.URL, p *driver.Params, c *mysql.Config) error {
	addrs, err := netaddr.Of(u, "3306")
	if err != nil {
		return err
	}
	if len(addrs) > 1 {
		return fmt.Errorf("%w: want one host: the database's primary, or a name that leads to it; locks on several servers are what quorum: is for", driver.ErrInvalid)
	}
	c.Net, c.Addr = "tcp", addrs[0]
	if socket := p.String("socket", ""); socket != "" {
		if u.Host != "" {
			return fmt.Errorf("%w: want a host or a socket, as in mysql:///app?socket=/run/mysqld/mysqld.sock, not both", driver.ErrInvalid)
		}
		c.Net, c.Addr = "unix", socket
	}
	c.DBName = strings.TrimPrefix(u.Path, "/")
	if c.DBName == "" || strings.Contains(c.DBName, "/") || u.Fragment != "" {
		// The value may contain a part of the password, so the error does not quote it.
		return fmt.Errorf("%w: want the name of a database, as in mysql://user:password@localhost:3306/app; characters such as / # ? @ in a password must be %%-encoded", driver.ErrInvalid)
	}
	return nil
}

// literal writes bytes into a statement. A text without parameters takes one round trip in any pool,
// whether that prepares statements or not.
func literal(text string) string {
	if text == "" {
		return "''"
	}
	return "X'" + hex.EncodeToString([]byte(text)) + "'"
}
