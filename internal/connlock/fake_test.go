package connlock

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"strconv"
	"sync"
	"testing"
	"time"

	lock "github.com/distlock/distlock/driver"
)

// fakeServer is a server in memory, and its own Dialect.
type fakeServer struct {
	mu      sync.Mutex
	links   int
	has     map[string]*fakeLockConn // by key
	numbers uint64

	down    bool          // links have ended, and none can be killed
	blocked chan struct{} // Ping does not return until it is closed; nil: it does
	rolling chan struct{} // nor does the driver's rollback
	late    bool          // Number answers when its context ends, as a driver may
}

func newFake(t *testing.T) (*fakeServer, *Backend) {
	t.Helper()
	f := &fakeServer{has: map[string]*fakeLockConn{}}
	b, err := New(t.Context(), Config{DB: f.pool(t), Dialect: f, Package: "fake", Name: "fake"})
	if err != nil {
		t.Fatal(err)
	}
	return f, b
}

func (f *fakeServer) pool(t *testing.T) *sql.DB {
	db := sql.OpenDB(fakeConnector{f})
	t.Cleanup(func() { db.Close() })
	return db
}

func fakeRequest(name string) lock.Request {
	return lock.Request{Hold: lock.Hold{Name: name, Owner: lock.NewOwner(), Mode: lock.Exclusive, TTL: time.Minute}, Fences: 1}
}

func (f *fakeServer) Key(name string) string { return name }

func (f *fakeServer) NewConn(_ context.Context, conn *sql.Conn, _ time.Duration) (Conn, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.links++
	return &fakeLockConn{f: f, id: strconv.Itoa(f.links), conn: conn}, nil
}

func (f *fakeServer) Cancel(context.Context, string) error { return nil }

func (f *fakeServer) Kill(context.Context, string) error { return f.answer() }

// answer is an error while the server is down.
func (f *fakeServer) answer() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.down {
		return errors.New("the server is down")
	}
	return nil
}

func (f *fakeServer) set(down bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.down = down
}

func (f *fakeServer) KillHolder(context.Context, Lock) (bool, error) { return false, nil }

func (f *fakeServer) Number(context.Context, Lock, string) (uint64, error) { return f.next(), nil }

func (f *fakeServer) next() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.numbers++
	return f.numbers
}

func (f *fakeServer) RemoveProbe(context.Context, Lock) error { return nil }

func (f *fakeServer) CommitRefused(error) bool { return false }

type fakeLockConn struct {
	f    *fakeServer
	id   string
	conn *sql.Conn
}

func (k *fakeLockConn) ID() string { return k.id }

func (k *fakeLockConn) Lease(context.Context, time.Duration) error { return nil }

func (k *fakeLockConn) Ping(context.Context) error {
	k.f.mu.Lock()
	blocked := k.f.blocked
	k.f.mu.Unlock()
	if blocked != nil {
		<-blocked
	}
	return nil
}

func (k *fakeLockConn) TryLock(_ context.Context, l Lock) (number uint64, ok bool, err error) {
	k.f.mu.Lock()
	by := k.f.has[l.Key]
	if by == nil {
		k.f.has[l.Key] = k
	}
	k.f.mu.Unlock()
	return k.f.next(), by == nil || by == k, nil
}

func (k *fakeLockConn) WaitLock(context.Context, Lock, time.Duration) (bool, error) {
	return false, errors.New("nobody waits here")
}

func (k *fakeLockConn) Number(ctx context.Context, _ Lock) (uint64, error) {
	if k.f.late {
		<-ctx.Done()
	}
	return k.f.next(), nil
}

func (k *fakeLockConn) Confirm(context.Context, Lock) error { return nil }

func (k *fakeLockConn) Unlock(_ context.Context, l Lock) error {
	if err := k.f.answer(); err != nil {
		return err
	}
	k.f.mu.Lock()
	defer k.f.mu.Unlock()
	delete(k.f.has, l.Key)
	return nil
}

func (k *fakeLockConn) Undo(context.Context, Lock) error { return k.f.answer() }

func (k *fakeLockConn) Alive() error { return k.f.answer() }

func (k *fakeLockConn) Tx() *sql.Tx { return nil }

func (k *fakeLockConn) Commit(context.Context) error { return nil }

func (k *fakeLockConn) Close() { k.conn.Close() }

// fakeConnector, fakeConn and fakeTx are a driver of database/sql that only knows transactions.
type fakeConnector struct{ f *fakeServer }

func (c fakeConnector) Connect(context.Context) (driver.Conn, error) { return fakeConn(c), nil }

func (c fakeConnector) Driver() driver.Driver { return nil }

type fakeConn struct{ f *fakeServer }

func (c fakeConn) Prepare(string) (driver.Stmt, error) { return nil, driver.ErrBadConn }

func (c fakeConn) Close() error { return nil }

func (c fakeConn) Begin() (driver.Tx, error) { return fakeTx(c), nil }

type fakeTx struct{ f *fakeServer }

func (t fakeTx) Commit() error { return nil }

func (t fakeTx) Rollback() error {
	if t.f.rolling != nil {
		<-t.f.rolling
	}
	return nil
}
