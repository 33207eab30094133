package connlock

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
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
	tries   int
	kills   int
	numbers uint64
	has     map[string]*fakeConn // by key

	limit      int           // of the pool
	down       bool          // connections have ended, and none can be killed
	blocked    chan struct{} // Ping does not return until it is closed; nil: it does
	late       bool          // Number returns when its context ends, as a driver may
	rowLocked  bool          // connections write no numbers
	loose      bool          // connections do not exclude each other
	unanswered bool          // commits get no answer
	commitTime time.Duration // from the end of the locks to the answer
	unlockTime time.Duration // from the end of the lock to the answer
	silent     int           // connections opened so far whose TryLock and Ping get no answer
	lease      time.Duration // the last one
	confirm    error         // the result of Confirm
	confirmed  func()        // called after it; may be nil
}

// newFake returns a backend on a fake server. Changes of the Config are optional.
func newFake(t *testing.T, f *fakeServer, change ...func(*Config)) *Backend {
	t.Helper()
	f.has = map[string]*fakeConn{}
	c := Config{DB: f.pool(t), Dialect: f, Package: "fake", Name: "fake"}
	for _, f := range change {
		f(&c)
	}
	b := must.Get(New(t.Context(), c))(t)
	t.Cleanup(func() { b.Close() })
	return b
}

func joins(c *Config) { c.Joins = true }

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

func (f *fakeServer) Key(name string) string { return name }

func (f *fakeServer) NewConn(_ context.Context, conn *sql.Conn, _ time.Duration) (Conn, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.opened++
	return &fakeConn{f: f, id: f.opened, tx: Tx{Conn: conn}}, nil
}

func (f *fakeServer) Kill(ctx context.Context, id string) error {
	if err := errors.Join(ctx.Err(), f.answer()); err != nil {
		return err
	}
	f.set(func() { f.kills++ })
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

func (f *fakeServer) KillHolder(context.Context, Lock) (bool, error) { return false, nil }

func (f *fakeServer) Number(context.Context, Lock, string) (uint64, error) { return f.next(), nil }

func (f *fakeServer) next() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.numbers++
	return f.numbers
}

func (f *fakeServer) CommitRefused(error) bool { return false }

type fakeConn struct {
	f  *fakeServer
	id int
	tx Tx
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
	if _, err := c.tx.Begin(ctx); err != nil {
		return 0, false, err
	}
	c.f.set(func() { c.f.tries++ })
	if err := c.silent(ctx); err != nil {
		return 0, false, err
	}
	if !c.take(l) {
		return 0, false, nil
	}
	if c.f.rowLocked {
		return 0, true, nil
	}
	return c.f.next(), true, nil
}

func (c *fakeConn) take(l Lock) bool {
	c.f.mu.Lock()
	defer c.f.mu.Unlock()
	by := c.f.has[l.Key]
	if by == nil {
		c.f.has[l.Key] = c
	}
	return by == nil || by == c || c.f.loose
}

// WaitLock polls every millisecond.
func (c *fakeConn) WaitLock(ctx context.Context, l Lock, slice time.Duration) (bool, error) {
	end := time.After(slice)
	for {
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
	if c.f.rowLocked {
		return 0, nil
	}
	return c.f.next(), nil
}

func (c *fakeConn) Confirm(context.Context) error {
	if c.f.confirmed != nil {
		defer c.f.confirmed()
	}
	return c.f.confirm
}

func (c *fakeConn) Unlock(_ context.Context, l Lock) error {
	if err := c.f.answer(); err != nil {
		return err
	}
	defer time.Sleep(c.f.unlockTime)
	c.f.mu.Lock()
	defer c.f.mu.Unlock()
	if c.f.has[l.Key] != c && !c.f.loose {
		return lock.ErrLost
	}
	delete(c.f.has, l.Key)
	return nil
}

func (c *fakeConn) Alive() error { return c.f.answer() }

func (c *fakeConn) Tx() *sql.Tx { return c.tx.Current() }

func (c *fakeConn) Commit(ctx context.Context) error {
	if c.f.unanswered {
		return errors.New("no answer")
	}
	err := c.tx.Finish(ctx, (*sql.Tx).Commit)
	c.f.end(func(other *fakeConn) bool { return other == c })
	time.Sleep(c.f.commitTime)
	return err
}

func (c *fakeConn) Rollback(ctx context.Context) error {
	c.f.end(func(other *fakeConn) bool { return other == c })
	return c.tx.Finish(ctx, (*sql.Tx).Rollback)
}

// Close ends the connection's locks, like a server that sees the connection close.
func (c *fakeConn) Close() {
	if c.f.answer() == nil {
		c.f.end(func(other *fakeConn) bool { return other == c })
	}
	c.tx.Close()
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
