package mysqllock

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"sync"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/connlock"
	"github.com/distlock/distlock/internal/netaddr"
)

func init() {
	driver.Register("mysql", func(ctx context.Context, u *url.URL) (driver.Backend, error) { return openURL(ctx, u, nil) })
}

// Backend keeps locks in a database. Its methods are safe for concurrent use.
type Backend struct {
	strategy
	database *database
	once     sync.Once
	err      error // of Close
}

// Open connects to the database of a URL:
//
//	mysql://user:password@localhost:3306/app
//	mysql://user:password@db.example.com/app?tls=true&ca=/etc/ssl/db.pem
//	mysql://user@/app?socket=/run/mysqld/mysqld.sock&strategy=session
//
// The password may stand in the file of the parameter password_file instead, which is read at each login; so are the
// files of a certificate when they have changed. Other parameters are strategy (row, forupdate, session), table, create,
// onewriter and name, see Options; max_connections, the limit of the pool, by default none for session and forupdate,
// else 16; tls (false, true, skip-verify, preferred), and for tls=true the files ca, cert and key, and servername; socket;
// timeout, readTimeout and writeTimeout as durations; and allowCleartextPasswords, for servers that want a cloud's token
// as the password itself. An error that will not go away is ErrInvalid. No error shows a password.
func Open(ctx context.Context, rawURL string) (*Backend, error) { return OpenWith(ctx, rawURL, nil) }

// OpenOptions are what a URL can't say.
type OpenOptions struct {
	// Credentials, if not nil, returns the user and the password of a login, in place of the URL's: for the tokens of a
	// cloud, or Vault. An empty user means the URL's. It is called for each connection, from several goroutines. If it
	// returns an error that login fails, and is tried again. Tokens usually need the parameters tls=true and
	// allowCleartextPasswords=true.
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
	if u.Scheme != "mysql" {
		return nil, fmt.Errorf("%w: want a URL such as mysql://user:password@localhost:3306/app", driver.ErrInvalid)
	}
	return openURL(ctx, u, opts.Credentials)
}

// New uses connections of the caller's pool. Close does not close it, and its limits are not changed. Its
// driver must be github.com/go-sql-driver/mysql. A connection that is taken for locks gets settings of its own, and is
// closed and not given back, so the pool's settings do not matter and stay. Unused ones are closed as soon as a
// pool with a limit has no other left. Such a pool needs room for the connections that the strategy holds. nil options mean the defaults. An error that will not go
// away, such as a missing table, is ErrInvalid.
func New(ctx context.Context, db *sql.DB, opts *Options) (*Backend, error) {
	if db == nil {
		return nil, fmt.Errorf("%w: mysqllock: no *sql.DB", driver.ErrInvalid)
	}
	return open(ctx, db, opts, false)
}

func open(ctx context.Context, db *sql.DB, opts *Options, owned bool) (*Backend, error) {
	o, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	s := &database{db: db, pool: db, opts: o, spec: specOf(o)}
	if !owned {
		s.lent = lend(db)
		s.db = s.lent.db
	}
	if err := s.probe(ctx); err != nil {
		return nil, errors.Join(err, s.close())
	}
	made, err := s.newStrategy(ctx)
	if err != nil {
		return nil, errors.Join(openError(s.opts, err), s.close())
	}
	return &Backend{strategy: made, database: s}, nil
}

// close closes the pool that Open made, or gives back what New was lent.
func (d *database) close() error {
	if d.lent != nil {
		return d.lent.Close()
	}
	return d.db.Close()
}

func openURL(ctx context.Context, u *url.URL, own netaddr.Credentials) (*Backend, error) {
	config, l, opts, limit, err := readURL(u, own)
	if err != nil {
		return nil, err
	}
	made, err := l.connector(config)
	if err != nil {
		return nil, fmt.Errorf("%w: mysqllock: %w", driver.ErrInvalid, err)
	}
	db := sql.OpenDB(&connector{open: made.Connect, driver: made.Driver(), addr: config.Addr, explain: l.explain, setup: []string{sessionSQL}})
	db.SetMaxOpenConns(limit)
	db.SetMaxIdleConns(maxIdle)
	db.SetConnMaxIdleTime(idleTime)
	return open(ctx, db, opts, true)
}

// rest sets how long the pool keeps unused connections; 0: as long as otherwise.
func (d *database) rest(t time.Duration) {
	usual := idleTime
	if d.lent != nil {
		usual = lentIdle
	}
	d.db.SetConnMaxIdleTime(cmp.Or(t, usual))
}

// Close ends the backend's goroutines and returns its connections. It closes a pool that Open made.
// See driver.Backend.
func (b *Backend) Close() error {
	b.once.Do(func() {
		b.err = b.strategy.Close()
		b.err = errors.Join(b.err, b.database.close())
	})
	return b.err
}

// Acquire makes one attempt. See driver.Backend.
func (b *Backend) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	g, err := b.strategy.Acquire(ctx, r)
	b.database.renewIfStale(err)
	return g, err
}

// Renew makes holds live on. See driver.Backend.
func (b *Backend) Renew(ctx context.Context, holds []driver.Hold) []error {
	errs := b.strategy.Renew(ctx, holds)
	b.database.renewIfStale(errors.Join(errs...))
	return errs
}

// Release ends a hold. See driver.Backend.
func (b *Backend) Release(ctx context.Context, h driver.Hold) error {
	err := b.strategy.Release(ctx, h)
	b.database.renewIfStale(err)
	return err
}

// renewIfStale closes the unused connections after an error that may be true of them only.
func (d *database) renewIfStale(err error) {
	switch {
	case !stale(err):
	case d.lent != nil:
		d.lent.dropUnused()
	default:
		d.db.SetMaxIdleConns(-1)
		d.db.SetMaxIdleConns(maxIdle)
	}
}

// FreeConnections returns how many more connections the server accepts from the backend's user now,
// by the limits of the server and of the user. A connection reserved for administrators does not
// count. A proxy in between may accept fewer.
func (b *Backend) FreeConnections(ctx context.Context) (int, error) {
	db := b.database.db
	var limit, ofUser, used int
	err := db.QueryRowContext(ctx, "SELECT @@max_connections, @@max_user_connections").Scan(&limit, &ofUser)
	if err != nil {
		return 0, openError(b.database.opts, err)
	}
	var name string
	if err := db.QueryRowContext(ctx, "SHOW GLOBAL STATUS LIKE 'Threads_connected'").Scan(&name, &used); err != nil {
		return 0, openError(b.database.opts, err)
	}
	free := limit - used
	if ofUser > 0 {
		query := "SELECT COUNT(*) FROM information_schema.processlist WHERE user = SUBSTRING_INDEX(USER(), '@', 1)"
		if err := db.QueryRowContext(ctx, query).Scan(&used); err != nil {
			return 0, openError(b.database.opts, err)
		}
		free = min(free, ofUser-used)
	}
	return max(free, 0), nil
}

// Commit runs work in the transaction that has a lock, and commits it: work is stored if and only if
// the lock lasted until then. It is for strategy [ForUpdate]; others return ErrUnsupported. The
// owner is the result of a lease's method Owner.
//
// If work returns an error, or ctx ends, nothing of it is stored, and the lock has ended too. If the
// hold is lost, Commit returns ErrLost before it runs work, or instead of storing it. If the
// server's answer to the commit is missing, the error says that the outcome is unknown. An Unlock
// after Commit returns nil.
//
// Nothing renews the lease while work runs, so work must end within what is left of its TTL, and the
// server ends a transaction that is silent for a TTL. Work must not end the transaction itself, nor
// run statements that MySQL commits by itself, such as DDL. A deadlock error has ended the
// transaction and the lock: nothing is stored, even if work ignores the error. The isolation level
// is READ COMMITTED.
func (b *Backend) Commit(ctx context.Context, owner string, work func(tx *sql.Tx) error) error {
	if c, ok := b.strategy.(*connlock.Backend); ok && c.InTx {
		return c.Commit(ctx, owner, work)
	}
	return fmt.Errorf("%w: mysqllock: Commit is for strategy %s", driver.ErrUnsupported, ForUpdate)
}

// Schema returns the DDL of a strategy's table, as a commented statement that ends with a
// semicolon. Create runs the same. It returns "" for invalid options.
func Schema(o Options) string {
	c, err := (&o).withDefaults()
	if err != nil {
		return ""
	}
	return specOf(c).ddl()
}

// specOf returns a strategy's table; o is complete.
func specOf(o Options) tableSpec {
	if o.Strategy == Row {
		return rowTable(o)
	}
	return connTable(o)
}

// newStrategy returns the strategy that the options name.
func (d *database) newStrategy(ctx context.Context) (strategy, error) {
	if d.opts.Strategy == Row {
		return newRow(ctx, d)
	}
	if err := d.refuseManyWriters(ctx); err != nil {
		return nil, err
	}
	return newOnConnections(ctx, d)
}
