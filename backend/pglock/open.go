package pglock

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"fmt"
	"net/url"
	"slices"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/netaddr"
)

// schemes are the URL schemes that libpq knows.
var schemes = []string{"postgres", "postgresql"}

func init() {
	for _, scheme := range schemes {
		driver.Register(scheme, func(ctx context.Context, u *url.URL) (driver.Backend, error) { return openURL(ctx, u, nil) })
	}
}

// Open connects to the database of a URL:
//
//	postgres://app:secret@db1:5432/app?sslmode=verify-full&create=true
//	postgres://app:secret@db1,db2/app?target_session_attrs=read-write
//	postgres:///app?host=/var/run/postgresql&strategy=advisory
//
// The parameters strategy, table, create and pooler set the [Options]. max_connections limits the
// pool: 16 is the default with Row, and Advisory has no limit. password_file names a file that has the password. All other
// parameters are pgx's, which knows libpq's and passes unknown ones to the server as settings. Connections are
// opened as they are needed. The files of passwords and certificates are read again for each.
func Open(ctx context.Context, rawURL string) (*Backend, error) { return OpenWith(ctx, rawURL, nil) }

// OpenOptions are what a URL can't say.
type OpenOptions struct {
	// Credentials, if not nil, returns the user and the password of a login; an empty user means the URL's, which has no
	// password then. It is called for each connection, from several goroutines. An error lets that login fail, and
	// it is tried again.
	Credentials func(ctx context.Context) (user, password string, err error)
}

// OpenWith is Open with options; nil means none.
func OpenWith(ctx context.Context, rawURL string, opts *OpenOptions) (*Backend, error) {
	if opts == nil {
		opts = &OpenOptions{}
	}
	u, err := driver.ParseURL(rawURL)
	if err != nil {
		return nil, err
	}
	if !slices.Contains(schemes, u.Scheme) {
		return nil, fmt.Errorf("%w: want a URL such as postgres://user:password@host:5432/database, with %%-encoded user and password", driver.ErrInvalid)
	}
	return openURL(ctx, u, opts.Credentials)
}

func openURL(ctx context.Context, u *url.URL, login netaddr.Credentials) (*Backend, error) {
	opts, limit, err := readOptions(u)
	if err != nil {
		return nil, err
	}
	c, err := newConnector(u, opts, login)
	if err != nil {
		return nil, err
	}
	return start(ctx, &database{db: openPool(c, limit), limit: limit, owned: true, bounds: opts.Pooler == ""}, opts)
}

// ownParams are the parameters that pgx does not see.
var ownParams = []string{"strategy", "table", "create", "pooler", "max_connections", "password_file"}

// readOptions reads distlock's own parameters. A limit of 0 connections means none.
func readOptions(u *url.URL) (opts *Options, limit int, err error) {
	if u.Query().Has("level") {
		return nil, 0, fmt.Errorf("%w: URL: there is no parameter level: remove it; with strategy=advisory Commit needs none", driver.ErrInvalid)
	}
	own := url.Values{}
	for key, values := range u.Query() {
		if slices.Contains(ownParams, key) {
			own[key] = values
		}
	}
	p := driver.NewParams(&url.URL{RawQuery: own.Encode()})
	opts = &Options{
		Strategy: Strategy(p.Choice("strategy", string(Row), string(Advisory))),
		Table:    p.String("table", ""),
		Create:   p.Bool("create", false),
		Pooler:   Pooler(p.String("pooler", "")),
	}
	limit = maxConns
	if opts.Strategy == Advisory {
		limit = 0 // each hold and each waiter may need its own connection
	}
	limit = p.Int("max_connections", limit, 1, maxLimit)
	p.String("password_file", "") // newConnector reads it
	return opts, limit, p.Err()
}

const (
	// maxConns is the default limit of a pool made from a URL. More connections write no faster, and
	// a server has a hundred for all its users.
	maxConns = 16

	// maxLimit bounds the parameter max_connections. No server allows more.
	maxLimit = 100_000

	// maxIdleTime is how long an unused connection is kept.
	maxIdleTime = time.Minute
)

// openPool opens a pool of a connector's connections.
func openPool(c sqldriver.Connector, limit int) *sql.DB {
	db := sql.OpenDB(c)
	db.SetMaxOpenConns(limit)
	db.SetMaxIdleConns(maxConns)
	db.SetConnMaxIdleTime(maxIdleTime)
	return db
}
