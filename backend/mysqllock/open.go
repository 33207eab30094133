package mysqllock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"sync"

	"github.com/go-sql-driver/mysql"

	"github.com/distlock/distlock/driver"
)

func init() {
	driver.Register("mysql", func(ctx context.Context, u *url.URL) (driver.Backend, error) { return openURL(ctx, u) })
}

// Backend keeps locks in a database. Its methods are safe for concurrent use.
type Backend struct {
	strategy
	site *site
	once sync.Once
	err  error // of Close
}

// strategy is what a way of keeping locks does. Of the methods of Waiter and Inspector
// it may answer any with driver.ErrSkip.
type strategy interface {
	driver.Backend
	driver.Watcher
	driver.Inspector
}

// Open connects to the database of a URL:
//
//	mysql://user:password@localhost:3306/app
//	mysql://user:password@db.example.com/app?tls=true&ca=/etc/ssl/db.pem
//	mysql://user@/app?socket=/run/mysqld/mysqld.sock&strategy=session
//
// Parameters: strategy (row, unique, version, forupdate, session), table, create and onewriter,
// see Options; max_connections, the limit of the pool, by default none; tls (false, true, skip-verify, preferred), and for tls=true the files ca, cert and
// key; socket; timeout, readTimeout and writeTimeout as durations; and of the MySQL
// driver connectionAttributes, allowNativePasswords, allowCleartextPasswords and
// allowFallbackToPlaintext. What can never work is ErrInvalid; no error shows a password.
func Open(ctx context.Context, rawURL string) (*Backend, error) {
	u, err := driver.ParseURL(rawURL)
	if err != nil {
		return nil, err
	}
	if u.Scheme != "mysql" {
		return nil, fmt.Errorf("%w: want a URL such as mysql://user:password@localhost:3306/app", driver.ErrInvalid)
	}
	return openURL(ctx, u)
}

func openURL(ctx context.Context, u *url.URL) (*Backend, error) {
	config, opts, limit, err := readURL(u)
	if err != nil {
		return nil, err
	}
	connector, err := mysql.NewConnector(config)
	if err != nil {
		return nil, fmt.Errorf("%w: mysqllock: %w", driver.ErrInvalid, err)
	}
	db := sql.OpenDB(connector)
	db.SetMaxOpenConns(limit)
	db.SetMaxIdleConns(maxIdle)
	b, err := open(ctx, db, opts, true)
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return b, nil
}

// maxIdle is how many connections a pool of our own keeps for calls to come: the
// default of database/sql, 2, closes and opens connections under load.
const maxIdle = 16

// New uses a pool of the caller's, which stays the caller's: Close does not close it,
// and its limits are not changed. Its connections are those of
// github.com/go-sql-driver/mysql. A pool with a limit needs room for the connections
// that the strategy holds. nil options mean the defaults. What can never work, such as a
// missing table, is ErrInvalid.
func New(ctx context.Context, db *sql.DB, opts *Options) (*Backend, error) {
	if db == nil {
		return nil, fmt.Errorf("%w: mysqllock: no *sql.DB", driver.ErrInvalid)
	}
	return open(ctx, db, opts, false)
}

func open(ctx context.Context, db *sql.DB, opts *Options, owned bool) (*Backend, error) {
	o, err := opts.complete()
	if err != nil {
		return nil, err
	}
	s := &site{db: db, opts: o, owned: owned}
	if err := s.probe(ctx); err != nil {
		return nil, err
	}
	made, err := s.make(ctx)
	if err != nil {
		return nil, openError(s, err)
	}
	return &Backend{strategy: made, site: s}, nil
}

// Close ends the backend's goroutines and gives back the connections that it held; a
// pool that Open made is closed. See driver.Backend.
func (b *Backend) Close() error {
	b.once.Do(func() {
		b.err = b.strategy.Close()
		if b.site.owned {
			b.err = errors.Join(b.err, b.site.db.Close())
		}
	})
	return b.err
}
