package connlock

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/wait"
)

// probeLease is the lease of the connections that probe. They are the first to be used for holds of the
// default TTL.
const probeLease = 30 * time.Second

// New makes a backend, after it has checked that two connections exclude each other.
func New(ctx context.Context, c Config) (*Backend, error) {
	b := &Backend{
		Config: c,
		caps: driver.Caps{
			Name: c.Name, Modes: driver.Modes(driver.Exclusive), Fence: true, Session: true, MinTTL: minTTL, MaxTTL: maxTTL,
		},
		conns: map[*lockConn]struct{}{}, byOwner: map[string]*connHold{}, byKey: map[string]*connHold{}, orphans: map[string]*orphan{},
		committed: recentSet{}, lost: recentSet{},
	}
	b.ctx, b.cancel = context.WithCancel(context.Background())
	if err := b.probe(ctx); err != nil {
		b.Close()
		return nil, fmt.Errorf("%s: open: %w", c.Package, err)
	}
	b.goTask(b.watchConns)
	return b, nil
}

// probe takes a lock of its own on two connections: the second must be refused until the first has unlocked.
func (b *Backend) probe(ctx context.Context) error {
	if limit := b.DB.Stats().MaxOpenConnections; limit > 0 && limit < minPool {
		return fmt.Errorf("%w: the pool's limit is %d; locks on connections need %d at least: raise SetMaxOpenConns, or max_connections in a URL", driver.ErrInvalid, limit, minPool)
	}
	l := Lock{Name: "distlock probe " + driver.NewOwner(), Owner: driver.NewOwner(), Probe: true}
	l.Key = b.Dialect.Key(l.Name)
	one, err := b.dial(ctx, probeLease)
	if err != nil {
		return err
	}
	two, err := b.dial(ctx, probeLease)
	if err != nil {
		one.conn.Close()
		return err
	}
	err = exclude(ctx, one.conn, two.conn, l)
	if err == nil {
		err = b.Dialect.RemoveProbe(ctx, l)
	}
	if err != nil {
		one.conn.Close()
		two.conn.Close()
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range []*lockConn{one, two} {
		c.lastSent = time.Now()
		b.conns[c] = struct{}{}
		b.keepIfUnused(c)
	}
	return nil
}

// exclude returns an error if two connections do not exclude each other.
func exclude(ctx context.Context, one, two Conn, l Lock) error {
	try := func(c Conn, want bool) error {
		_, ok, err := c.TryLock(ctx, l)
		if err == nil && ok != want {
			err = fmt.Errorf("%w: two connections do not exclude each other: the server, or a pooler or proxy before it, does not keep what belongs to a connection", driver.ErrUnsupported)
		}
		return err
	}
	for _, step := range []func() error{
		func() error { return try(one, true) },
		func() error { return try(two, false) },
		func() error { return one.Unlock(ctx, l) },
		func() error { return try(two, true) },
		func() error { return two.Unlock(ctx, l) },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// closeTime bounds Close.
const closeTime = 15 * time.Second

// Close closes the connections, and so ends all holds. Work that is under way in Commit ends with an
// error.
func (b *Backend) Close() error {
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return nil
	}
	b.closed = true
	b.mu.Unlock()
	b.cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		b.closeConns()
	}()
	t := time.NewTimer(closeTime)
	defer t.Stop()
	select {
	case <-done:
		return nil
	case <-t.C:
		return fmt.Errorf("%s: close: a connection has not ended after %v", b.Package, closeTime)
	}
}

// closeConns waits for background tasks, and closes the connections.
func (b *Backend) closeConns() {
	b.tasks.Wait()
	b.mu.Lock()
	conns := slices.Collect(maps.Keys(b.conns))
	b.mu.Unlock()
	var wg wait.Group
	for _, c := range conns {
		wg.Go(c.shutDown)
	}
	wg.Wait()
}

// shutDown closes a connection. If the caller's work has it, in a statement that may not end, the
// connection is killed through another one. If that fails, it is closed when the work is done.
func (c *lockConn) shutDown() {
	select {
	case <-c.sem:
	default:
		ctx, cancel := context.WithTimeout(context.Background(), cleanupTime)
		defer cancel()
		c.b.Dialect.Kill(ctx, c.conn.ID())
		select {
		case <-c.sem:
		case <-ctx.Done():
			return
		}
	}
	defer func() { c.sem <- struct{}{} }()
	if !c.isDead() {
		c.conn.Close()
	}
}

// checkInterval is how often connections are checked. For this long two clients may believe that they hold a
// lock, if the server ends a connection and grants its lock at once.
const checkInterval = 50 * time.Millisecond

// idleTime is how long an idle connection is kept, if its lease is long enough.
const idleTime = 10 * time.Second

// watchConns checks connections until the backend is closed. It sends nothing.
func (b *Backend) watchConns() {
	t := time.NewTicker(checkInterval)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			b.closeIdle()
			for _, c := range b.usedConns() {
				c.loseIfDead()
			}
		case <-b.ctx.Done():
			return
		}
	}
}

// closeIdle closes connections that have been idle for a while.
func (b *Backend) closeIdle() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range slices.Clone(b.idle) {
		if time.Since(c.idleSince) > min(c.lease/3, idleTime) {
			b.discard(c)
		}
	}
}

// usedConns returns the connections that have holds, or had one that was stale.
func (b *Backend) usedConns() []*lockConn {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []*lockConn
	for c := range b.conns {
		if len(c.holds) > 0 || c.attempts == 0 && !slices.Contains(b.idle, c) {
			all = append(all, c)
		}
	}
	return all
}

// loseIfDead ends a connection that the server has closed, or that was silent for too long. A statement
// under way finds that out by itself.
func (c *lockConn) loseIfDead() {
	select {
	case <-c.sem:
	default:
		return
	}
	defer func() { c.sem <- struct{}{} }()
	if c.isDead() {
		return
	}
	err := c.conn.Alive()
	if err == nil && time.Since(c.lastSent) >= c.maxSilence {
		err = errSilent
	}
	if err != nil {
		c.lose(err)
	}
}

// Lock is a lock that a connection requests.
type Lock struct {
	Name  string
	Key   string // what the server locks
	Owner string
	Meta  map[string]string
	Probe bool // only the answer matters: there is no owner, and no number

	// SeparateNumber means that the lock's connection does not write its number.
	SeparateNumber bool
}

// Dialect speaks to one kind of server.
type Dialect interface {
	// Key returns what the server locks for a name. Different names may have one key.
	Key(name string) string

	// NewConn prepares a fresh connection, which the server then ends when it is silent for longer than
	// lease.
	NewConn(ctx context.Context, conn *sql.Conn, lease time.Duration) (Conn, error)

	// Cancel ends the current statement of a connection, through another one.
	Cancel(ctx context.Context, id string) error

	// Kill ends a connection through another one. nil means that it has gone.
	Kill(ctx context.Context, id string) error

	// KillHolder ends another process's connection that has l for its Owner, if there is one.
	KillHolder(ctx context.Context, l Lock) (was bool, err error)

	// Number writes the next number of a lock that the connection with this ID has, through another
	// connection.
	Number(ctx context.Context, l Lock, id string) (uint64, error)

	// RemoveProbe removes what a Probe has left in tables, if anything.
	RemoveProbe(ctx context.Context, l Lock) error

	// CommitRefused reports whether err says that the server did not commit.
	CommitRefused(err error) bool
}

// Conn is a connection that keeps locks. Its methods send one statement at a time, and are not called
// concurrently.
type Conn interface {
	// ID identifies the connection to Cancel and Kill.
	ID() string

	// Lease sets how long the server lets the connection be silent.
	Lease(ctx context.Context, lease time.Duration) error

	// Ping sends any statement.
	Ping(ctx context.Context) error

	// TryLock makes one attempt, and returns the number of the grant. The number is 0 if Dialect.Number must
	// write it: because of SeparateNumber, or since the row is locked. It does not wait for the row.
	TryLock(ctx context.Context, l Lock) (number uint64, ok bool, err error)

	// WaitLock waits for the lock for up to slice. It writes no number.
	WaitLock(ctx context.Context, l Lock, slice time.Duration) (ok bool, err error)

	// Number writes the next number of a lock that this connection has; 0 as in TryLock. It is not called
	// with SeparateNumber.
	Number(ctx context.Context, l Lock) (uint64, error)

	// Confirm is called after Dialect.Number. nil means that the connection still has the lock.
	Confirm(ctx context.Context, l Lock) error

	// Unlock releases a lock that this connection has. ErrLost means that the server denies that.
	Unlock(ctx context.Context, l Lock) error

	// Undo is called after an error of TryLock or WaitLock. nil means that the connection does not have the
	// lock, and works.
	Undo(ctx context.Context, l Lock) error

	// Alive reports whether the connection is closed, without sending anything.
	Alive() error

	// Tx returns the transaction that has the lock; nil if connections have many locks.
	Tx() *sql.Tx

	// Commit commits Tx. If it returns nil, the connection does not have the lock any more.
	Commit(ctx context.Context) error

	// Close closes the connection.
	Close()
}

// Querier sends statements: a pool, a connection or a transaction.
type Querier interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// Tx is a connection and the transaction that may be open on it.
type Tx struct {
	Conn *sql.Conn

	tx     *sql.Tx
	cancel context.CancelFunc
	stuck  chan struct{} // closed when the driver returns from Detach's rollback; nil: it is not missing
}

// errStuck means that the driver does not return from the end of a transaction.
var errStuck = errors.New("the connection does not answer the end of its transaction")

// Querier returns the transaction if there is one, and else the connection. A statement sent through the
// connection that finds it broken would close it, and database/sql then waits for the end of
// the transaction.
func (t *Tx) Querier() Querier {
	if t.tx != nil {
		return t.tx
	}
	return t.Conn
}

// Exec sends a statement. After [sql.ErrTxDone] there is no transaction any more: the caller's work had
// ended it.
func (t *Tx) Exec(ctx context.Context, text string) error {
	_, err := t.Querier().ExecContext(ctx, text)
	if errors.Is(err, sql.ErrTxDone) && t.stuck == nil {
		t.forget()
	}
	return err
}

// Raw calls f with the driver's connection.
func (t *Tx) Raw(f func(raw any) error) error {
	if t.stuck != nil {
		return errStuck // database/sql's mutex of the connection is held
	}
	return t.Conn.Raw(f)
}

// Begin starts a transaction, or returns the current one. ctx bounds the start and not the
// transaction.
func (t *Tx) Begin(ctx context.Context) (*sql.Tx, error) {
	if t.tx != nil {
		return t.tx, nil
	}
	own, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer context.AfterFunc(ctx, cancel)()
	tx, err := t.Conn.BeginTx(own, nil)
	if err != nil {
		cancel()
		return nil, err
	}
	t.tx, t.cancel = tx, cancel
	return tx, nil
}

// Current returns the transaction, or nil.
func (t *Tx) Current() *sql.Tx { return t.tx }

// Finish commits or rolls back by end, such as (*sql.Tx).Commit, for a driver that respects the
// context of a transaction. If ctx ends first, the connection is unusable.
func (t *Tx) Finish(ctx context.Context, end func(*sql.Tx) error) error {
	if t.tx == nil {
		return nil
	}
	stop := context.AfterFunc(ctx, t.cancel)
	err := end(t.tx)
	stop()
	t.forget()
	return err
}

// Detach drops a transaction that a statement has ended, so that it can't be used any more. The
// driver may send another statement for that, which can't be interrupted. If ctx ends first, the
// connection is unusable.
func (t *Tx) Detach(ctx context.Context) {
	if t.tx == nil {
		return
	}
	done := make(chan struct{})
	go func(tx *sql.Tx) {
		defer close(done)
		tx.Rollback()
	}(t.tx)
	select {
	case <-done:
		t.forget()
	case <-ctx.Done():
		t.stuck = done
	}
}

func (t *Tx) forget() {
	t.cancel()
	t.tx = nil
}

// Close closes the connection, and ends the transaction with it.
func (t *Tx) Close() {
	if t.stuck != nil {
		go func() {
			<-t.stuck
			Discard(t.Conn)
		}()
		return
	}
	if t.tx != nil {
		t.Conn.Raw(hangUp) // database/sql can't close it before the transaction has ended
		t.tx.Rollback()
		t.forget()
	}
	Discard(t.Conn)
}

// Discard closes a connection instead of returning it to its pool, since its settings have changed. No
// transaction may be open.
func Discard(conn *sql.Conn) {
	conn.Raw(func(raw any) error {
		hangUp(raw)
		return sqldriver.ErrBadConn
	})
	conn.Close()
}

// hangUp closes the driver's connection: statements then fail at once.
func hangUp(raw any) error {
	if c, ok := raw.(sqldriver.Conn); ok {
		c.Close()
	}
	return nil
}
