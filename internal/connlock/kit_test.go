package connlock

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	lock "github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
)

// fakeServer is a server in memory, and the Dialect for it. Tests with a fakeServer run in virtual
// time.
type fakeServer struct {
	mu      sync.Mutex
	opened  int // connections so far
	pings   int
	kills   int
	numbers uint64
	has     map[string]*fakeConn // by key

	limit      int           // of the pool
	down       bool          // connections have ended, and none can be killed
	blocked    chan struct{} // Ping does not return until it is closed; nil: it does
	late       bool          // Number returns when its context ends, as a driver may
	refused    error         // the result of NewConn
	unanswered bool          // commits get no answer
	commitTime time.Duration // from the end of the locks to the answer
	unlockTime time.Duration // from the end of the lock to the answer
	silent     int           // connections opened so far whose TryLock and Ping get no answer
	unkillable bool          // connections can't be killed
	inTx       bool          // locks are transactions'
	lease      time.Duration // the last one
	cut        bool          // waits end
}

// newFake returns a backend on a fake server.
func newFake(t *testing.T, f *fakeServer) *Backend {
	t.Helper()
	if f.has == nil {
		f.has = map[string]*fakeConn{}
	}
	c := Config{DB: f.pool(t), Dialect: f, Package: "fake", Name: "fake", InTx: f.inTx, Explain: func(err error) error { return fmt.Errorf("it means: %w", err) }}
	b := must.Get(New(c))(t)
	t.Cleanup(func() { b.Close() })
	return b
}

// bubble runs a test in virtual time.
func bubble(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, test)
}

func (f *fakeServer) pool(t *testing.T) *sql.DB {
	db := sql.OpenDB(fakeConnector{f})
	db.SetMaxOpenConns(f.limit)
	t.Cleanup(func() { db.Close() })
	return db
}

func request(name string) lock.Request {
	return lock.Request{Hold: lock.Hold{Name: name, Owner: lock.NewOwner(), Mode: lock.Exclusive, TTL: time.Minute}, Fences: 1}
}

// take acquires a lock.
func take(t *testing.T, b *Backend, r lock.Request) lock.Grant {
	t.Helper()
	g, err := b.Acquire(t.Context(), r)
	if err != nil {
		t.Fatalf("%s: %v", r.Name, err)
	}
	return g
}

func wantHeld(t *testing.T, b *Backend, r lock.Request) {
	t.Helper()
	must.Be(t, expect.Err(b.Acquire(t.Context(), r)), lock.ErrHeld, r.Name)
}

func release(t *testing.T, b *Backend, r lock.Request) {
	t.Helper()
	must.OK(t, b.Release(t.Context(), r.Hold), r.Name)
}

// set changes the server.
func (f *fakeServer) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

// get returns one of the server's counters.
func (f *fakeServer) get(n *int) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return *n
}

func (f *fakeServer) NewConn(_ context.Context, conn *sql.Conn, _ time.Duration) (Conn, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.refused != nil {
		return nil, f.refused
	}
	f.opened++
	return &fakeConn{f: f, id: f.opened, conn: conn}, nil
}

func (f *fakeServer) Kill(ctx context.Context, id string) error {
	if err := errors.Join(ctx.Err(), f.answer()); err != nil {
		return err
	}
	f.mu.Lock()
	f.kills++
	unkillable := f.unkillable
	f.mu.Unlock()
	if unkillable {
		return errors.New("the server can't be reached")
	}
	f.end(func(c *fakeConn) bool { return strconv.Itoa(c.id) == id })
	return nil
}

// end frees the locks of some connections.
func (f *fakeServer) end(which func(*fakeConn) bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	maps.DeleteFunc(f.has, func(_ string, c *fakeConn) bool { return which(c) })
}

// answer returns an error while the server is down.
func (f *fakeServer) answer() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.down {
		return errors.New("the server is down")
	}
	return nil
}

// isCut reports whether waits end.
func (f *fakeServer) isCut() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.cut
}

func (f *fakeServer) next() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.numbers++
	return f.numbers
}

func (f *fakeServer) CommitRefused(error) bool { return false }

type fakeConn struct {
	f    *fakeServer
	id   int
	conn *sql.Conn
	tx   *sql.Tx
}

func (c *fakeConn) ID() string { return strconv.Itoa(c.id) }

func (c *fakeConn) Lease(_ context.Context, lease time.Duration) error {
	c.f.set(func() { c.f.lease = lease })
	return c.f.answer()
}

func (c *fakeConn) Ping(ctx context.Context) error {
	c.f.mu.Lock()
	c.f.pings++
	blocked := c.f.blocked
	c.f.mu.Unlock()
	if blocked != nil {
		<-blocked
	}
	if err := c.silent(ctx); err != nil {
		return err
	}
	return c.f.answer()
}

// silent waits for the end of ctx if the connection does not answer.
func (c *fakeConn) silent(ctx context.Context) error {
	if c.id > c.f.get(&c.f.silent) {
		return nil
	}
	<-ctx.Done()
	return ctx.Err()
}

func (c *fakeConn) TryLock(ctx context.Context, l Lock) (number uint64, ok bool, err error) {
	if err := c.silent(ctx); err != nil {
		return 0, false, err
	}
	if !c.take(l) {
		return 0, false, nil
	}
	return c.f.next(), true, nil
}

func (c *fakeConn) take(l Lock) bool {
	c.f.mu.Lock()
	defer c.f.mu.Unlock()
	by := c.f.has[l.Name]
	if by == nil {
		c.f.has[l.Name] = c
	}
	return by == nil || by == c
}

// WaitLock polls every millisecond.
func (c *fakeConn) WaitLock(ctx context.Context, l Lock, slice time.Duration) (bool, error) {
	end := time.After(slice)
	for {
		if c.f.isCut() {
			return false, errors.New("cut")
		}
		if c.take(l) {
			return true, nil
		}
		select {
		case <-end:
			return false, nil
		case <-ctx.Done():
			return false, ctx.Err()
		case <-time.After(time.Millisecond):
		}
	}
}

func (c *fakeConn) Number(ctx context.Context, _ Lock) (uint64, error) {
	if c.f.late {
		<-ctx.Done()
	}
	return c.f.next(), nil
}

func (c *fakeConn) Unlock(_ context.Context, l Lock) error {
	if err := c.f.answer(); err != nil {
		return err
	}
	defer time.Sleep(c.f.unlockTime)
	c.f.mu.Lock()
	defer c.f.mu.Unlock()
	if c.f.has[l.Name] != c {
		return lock.ErrLost
	}
	delete(c.f.has, l.Name)
	return nil
}

func (c *fakeConn) Alive() error { return c.f.answer() }

func (c *fakeConn) Begin(ctx context.Context) (tx *sql.Tx, err error) {
	if err := c.Ping(ctx); err != nil {
		return nil, err
	}
	c.tx, err = c.conn.BeginTx(context.WithoutCancel(ctx), nil)
	return c.tx, err
}

func (c *fakeConn) Commit(context.Context) error {
	if c.f.unanswered {
		return errors.New("no answer")
	}
	return c.finish(c.tx.Commit)
}

func (c *fakeConn) Rollback(context.Context) error { return c.finish(c.tx.Rollback) }

// finish ends the transaction, and frees the locks if they are its own.
func (c *fakeConn) finish(end func() error) error {
	err := end()
	if c.f.inTx {
		c.f.end(func(other *fakeConn) bool { return other == c })
	}
	time.Sleep(c.f.commitTime)
	return err
}

// Close ends the connection's locks, like a server that sees the connection close.
func (c *fakeConn) Close() error {
	if c.f.answer() == nil && c.id > c.f.get(&c.f.silent) {
		c.f.end(func(other *fakeConn) bool { return other == c })
	}
	if c.tx != nil {
		c.tx.Rollback()
	}
	return Discard(c.conn)
}

// fakeConnector, rawConn and rawTx are a driver of database/sql that knows transactions only.
type fakeConnector struct{ f *fakeServer }

func (c fakeConnector) Connect(context.Context) (driver.Conn, error) { return rawConn(c), nil }

func (c fakeConnector) Driver() driver.Driver { return nil }

type rawConn struct{ f *fakeServer }

func (c rawConn) Prepare(string) (driver.Stmt, error) { return nil, driver.ErrBadConn }

func (c rawConn) Close() error { return nil }

func (c rawConn) Begin() (driver.Tx, error) { return rawTx(c), nil }

type rawTx struct{ f *fakeServer }

func (t rawTx) Commit() error { return nil }

func (t rawTx) Rollback() error { return nil }
