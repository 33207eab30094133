package mysqllock

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/distlock/distlock/internal/connlock"
)

// A statement decides about a lock only if the settings of its session are known. So it runs on a connection that the
// connector below has set, by one statement, when it was opened. Neither globals, nor a DSN, nor what the program that
// owns the pool did before matter then.

// sessionSQL sets a session for statements that each commit by themselves. A wait for a row or for a table that another
// program has locked is short: a statement must not take effect long after its caller has gone. What only one of the two
// kinds of server has is in a comment that only that kind runs. The timestamp is the server's clock again.
// Time zones are not set, since nothing depends on them.
const sessionSQL = "SET SESSION autocommit = 1, completion_type = 0, sql_mode = 'STRICT_ALL_TABLES', " +
	"sql_select_limit = 18446744073709551615, sql_big_selects = 1, sql_safe_updates = 0, sql_auto_is_null = 0, " +
	"character_set_client = utf8mb4, character_set_results = utf8mb4, collation_connection = utf8mb4_general_ci, " +
	"lock_wait_timeout = 1, innodb_lock_wait_timeout = 1, wait_timeout = 600, timestamp = DEFAULT" +
	" /*!50720 , transaction_isolation = 'REPEATABLE-READ', transaction_read_only = 0, max_execution_time = 0 */" +
	" /*M!100600 , tx_isolation = 'REPEATABLE-READ', tx_read_only = 0, max_statement_time = 0 */"

// maxIdle is how many idle connections our own pool keeps. The default of database/sql, 2, closes
// and opens connections under load.
const maxIdle = 16

// idleTime is how long an unused connection is kept: less than the server's wait_timeout in sessionSQL.
const idleTime = 5 * time.Minute

// rollback ends what a connection of another program was in the middle of. It comes after sessionSQL, without which it
// could begin the next transaction.
const rollback = "ROLLBACK"

// connector opens connections and sets them.
type connector struct {
	open    func(context.Context) (sqldriver.Conn, error)
	driver  sqldriver.Driver
	addr    string            // for errors
	explain func(error) error // may be nil
	setup   []string
}

func (c *connector) Driver() sqldriver.Driver { return c.driver }

// Connect opens a connection. An error of it says that nothing else was sent.
func (c *connector) Connect(ctx context.Context) (sqldriver.Conn, error) {
	conn, err := c.open(ctx)
	if err != nil {
		return nil, c.dialError(err)
	}
	for _, text := range c.setup {
		if err := execOn(ctx, conn, text); err != nil {
			return nil, c.dialError(errors.Join(err, conn.Close()))
		}
	}
	return conn, nil
}

// dialError makes an error one of opening a connection, which package unsent knows: a login that is refused is one, too.
func (c *connector) dialError(err error) error {
	if c.explain != nil {
		err = c.explain(err)
	}
	if op := (*net.OpError)(nil); errors.As(err, &op) && op.Op == "dial" {
		return err
	}
	return &net.OpError{Op: "dial", Net: "mysql", Addr: address(c.addr), Err: err}
}

// address is a net.Addr.
type address string

func (a address) Network() string { return "mysql" }
func (a address) String() string  { return string(a) }

func execOn(ctx context.Context, conn sqldriver.Conn, text string) error {
	e, ok := conn.(sqldriver.ExecerContext)
	if !ok {
		return fmt.Errorf("%T can't run statements: want a pool of github.com/go-sql-driver/mysql", conn)
	}
	_, err := e.ExecContext(ctx, text, nil)
	return err
}

// connected returns an error if the server has closed a connection, as far as its socket shows that.
func connected(conn *sql.Conn) error {
	return conn.Raw(func(raw any) error {
		r, ok := raw.(sqldriver.SessionResetter)
		if ok && errors.Is(r.ResetSession(context.Background()), sqldriver.ErrBadConn) {
			return errors.New("the server has closed the connection")
		}
		return nil
	})
}

// lent is a connection of a caller's pool that is ours until it is closed: then it is closed for the pool too, which must
// not get it back with other settings.
type lent struct {
	sqldriver.Conn
	owner *sql.Conn
	once  sync.Once
}

// borrow takes a connection out of a pool.
func borrow(ctx context.Context, pool *sql.DB) (sqldriver.Conn, error) {
	owner, err := pool.Conn(ctx)
	if err != nil {
		return nil, err
	}
	l := &lent{owner: owner}
	err = owner.Raw(func(raw any) error {
		l.Conn, _ = raw.(sqldriver.Conn)
		return nil
	})
	if err == nil && l.Conn == nil {
		err = errors.New("the pool's connections are not those of a driver")
	}
	if err != nil {
		return nil, errors.Join(err, owner.Close())
	}
	return l, nil
}

func (l *lent) Close() error {
	l.once.Do(func() { connlock.Discard(l.owner) })
	return nil
}

func (l *lent) ExecContext(ctx context.Context, text string, args []sqldriver.NamedValue) (sqldriver.Result, error) {
	if c, ok := l.Conn.(sqldriver.ExecerContext); ok {
		return c.ExecContext(ctx, text, args)
	}
	return nil, sqldriver.ErrSkip
}

func (l *lent) QueryContext(ctx context.Context, text string, args []sqldriver.NamedValue) (sqldriver.Rows, error) {
	if c, ok := l.Conn.(sqldriver.QueryerContext); ok {
		return c.QueryContext(ctx, text, args)
	}
	return nil, sqldriver.ErrSkip
}

func (l *lent) PrepareContext(ctx context.Context, text string) (sqldriver.Stmt, error) {
	if c, ok := l.Conn.(sqldriver.ConnPrepareContext); ok {
		return c.PrepareContext(ctx, text)
	}
	return l.Conn.Prepare(text)
}

func (l *lent) BeginTx(ctx context.Context, o sqldriver.TxOptions) (sqldriver.Tx, error) {
	if c, ok := l.Conn.(sqldriver.ConnBeginTx); ok {
		return c.BeginTx(ctx, o)
	}
	return nil, errors.New("the pool's driver has no transactions with a context")
}

func (l *lent) CheckNamedValue(v *sqldriver.NamedValue) error {
	if c, ok := l.Conn.(sqldriver.NamedValueChecker); ok {
		return c.CheckNamedValue(v)
	}
	return sqldriver.ErrSkip
}

func (l *lent) ResetSession(ctx context.Context) error {
	if c, ok := l.Conn.(sqldriver.SessionResetter); ok {
		return c.ResetSession(ctx)
	}
	return nil
}

func (l *lent) IsValid() bool {
	c, ok := l.Conn.(sqldriver.Validator)
	return !ok || c.IsValid()
}

// The connections of a caller's pool that are lent are shared by all backends of the pool, and given up as soon as the
// program waits for one.
const (
	lentIdle  = time.Minute           // how long an unused one is kept
	lentLife  = 3 * time.Minute       // how long any one is kept: the pool can't replace it meanwhile
	lentCheck = 50 * time.Millisecond // how often the pool is looked at
)

// sharedPools has the pools of lent connections, by the caller's pool.
var sharedPools = struct {
	sync.Mutex
	of map[*sql.DB]*lentPool
}{of: map[*sql.DB]*lentPool{}}

// lentPool is a pool of connections that another pool lends.
type lentPool struct {
	caller *sql.DB
	db     *sql.DB
	users  int // guarded by sharedPools
	stop   context.CancelFunc
	done   chan struct{}
}

// lend returns the pool of connections that the caller's pool lends.
func lend(caller *sql.DB) *lentPool {
	sharedPools.Lock()
	defer sharedPools.Unlock()
	p := sharedPools.of[caller]
	if p == nil {
		p = &lentPool{caller: caller, done: make(chan struct{})}
		p.db = sql.OpenDB(&connector{
			open:   func(ctx context.Context) (sqldriver.Conn, error) { return borrow(ctx, caller) },
			driver: caller.Driver(), addr: "of the program's pool", setup: []string{sessionSQL, rollback},
		})
		p.db.SetConnMaxIdleTime(lentIdle)
		p.db.SetConnMaxLifetime(lentLife)
		p.limit()
		var ctx context.Context
		ctx, p.stop = context.WithCancel(context.Background())
		go p.watch(ctx)
		sharedPools.of[caller] = p
	}
	p.users++
	return p
}

// Close closes the pool after its last user.
func (p *lentPool) Close() error {
	sharedPools.Lock()
	defer sharedPools.Unlock()
	if p.users--; p.users > 0 {
		return nil
	}
	delete(sharedPools.of, p.caller)
	p.stop()
	<-p.done
	return p.db.Close()
}

// limit keeps within the caller's limit. At most half of it is kept while it is not used.
func (p *lentPool) limit() {
	n := p.caller.Stats().MaxOpenConnections
	p.db.SetMaxOpenConns(n)
	p.db.SetMaxIdleConns(maxIdle)
	if n > 0 {
		p.db.SetMaxIdleConns(min(maxIdle, max(1, n/2)))
	}
}

// dropUnused closes the connections that are not used.
func (p *lentPool) dropUnused() {
	p.db.SetMaxIdleConns(-1)
	p.limit()
}

// watch gives up unused connections while the caller's pool has none left.
func (p *lentPool) watch(ctx context.Context) {
	defer close(p.done)
	t := time.NewTicker(lentCheck)
	defer t.Stop()
	for last := 0; ; {
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
		now := p.caller.Stats()
		full := now.MaxOpenConnections > 0 && now.InUse >= now.MaxOpenConnections
		switch {
		case full:
			p.dropUnused()
		case now.MaxOpenConnections != last:
			p.limit()
		}
		last = now.MaxOpenConnections
	}
}
