// Package connlock keeps locks that live on a database connection. The server ends such a lock with its connection, and
// refuses one that another connection has, so nothing here decides who holds. The package is one backend over a small
// [Dialect].
//
// A lock has a connection of its own, and so has a waiter. It is taken out of the user's pool, kept for a while after an
// answered release for the next lock, and closed in the end, since its settings have changed. One connection of a limited
// pool is always left for others.
//
// Each connection lets the server end it after a silence of its hold's TTL. The server measures that from the end of a
// statement, the client from before it sent the statement, so the client's trust ends first. Only an answered statement
// prolongs it. A connection that has no answer for that long, or whose statement fails, is closed and never used again, and
// another one asks the server to end it. Its hold is lost. If the server ends a connection sooner, that is noticed within
// checkInterval where the system shows it, and by the next renewal at the latest. What a release without an answer has done
// is unknown.
package connlock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/wait"
)

// Config configures a Backend.
type Config struct {
	DB      *sql.DB
	Dialect Dialect
	Package string // the prefix of errors: "pglock"
	Name    string // for Caps
	InTx    bool   // a lock is a transaction's, and ends with its Commit
	Explain func(error) error
}

const (
	minTTL = time.Second // opening a connection may take as long on a bad day
	maxTTL = 24 * time.Hour

	cleanupTime = 5 * time.Second // for what follows an error
	retryPause  = 200 * time.Millisecond
	historyTime = 10 * time.Minute // how long a Commit that has ended a hold is remembered

	// checkInterval is how often connections are checked. For this long two clients may believe that they hold a
	// lock, if the server ends a connection and grants its lock at once.
	checkInterval = 50 * time.Millisecond
)

// Backend keeps locks on connections. It is safe for concurrent use.
type Backend struct {
	Config
	caps   driver.Caps
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	tasks  wait.Group
	owners wait.KeyedMutex[string]
	pool   *sql.DB // of connections for locks, each of which is one of Config.DB

	mu    sync.Mutex
	holds map[string]*lockConn // by owner
	over  map[string]bool      // by owner: a Commit has ended the hold
}

// New makes a backend.
func New(c Config) (*Backend, error) {
	if c.DB.Stats().MaxOpenConnections == 1 {
		return nil, fmt.Errorf("%w: %s: the pool's limit is 1: each lock has a connection, and one is left for others: raise SetMaxOpenConns, or max_connections in a URL", driver.ErrInvalid, c.Package)
	}
	b := &Backend{Config: c, holds: map[string]*lockConn{}, over: map[string]bool{}}
	b.caps = driver.Caps{Name: c.Name, Modes: driver.Modes(driver.Exclusive), Fence: true, Session: true, MinTTL: minTTL, MaxTTL: maxTTL}
	b.ctx, b.cancel = context.WithCancel(context.Background())
	b.pool = sql.OpenDB(connector{b})
	b.goTask(b.watchConns)
	return b, nil
}

// Caps describes the backend.
func (b *Backend) Caps() driver.Caps { return b.caps }

// Inspect is not implemented: servers do not know the names of locks.
func (b *Backend) Inspect(context.Context, string) (driver.Info, error) {
	return driver.Info{}, driver.ErrSkip
}

// List is not implemented.
func (b *Backend) List(context.Context, string, func(string) bool) error { return driver.ErrSkip }

// Close closes the connections, and so ends all holds. Work that is under way in Commit ends with an error.
func (b *Backend) Close() error {
	b.mu.Lock()
	b.cancel()
	b.mu.Unlock()
	b.tasks.Wait()
	for _, c := range b.allHolds() {
		if c.working.Load() {
			c.kill() // its statement may not end
		} else {
			c.fail()
		}
	}
	return b.pool.Close()
}

// wrapError adds the call to an error, unless the error is a definite answer.
func (b *Backend) wrapError(call, name string, err error) error {
	switch {
	case err == nil:
		return nil
	case b.ctx.Err() != nil:
		return driver.ErrClosed
	case errors.Is(err, driver.ErrLost) || errors.Is(err, driver.ErrHeld):
		return err
	}
	return fmt.Errorf("%s: %s %s: %w", b.Package, call, driver.Quote(name), b.Explain(err))
}

// goTask runs f in the background, unless the backend is closed.
func (b *Backend) goTask(f func()) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	open := b.ctx.Err() == nil
	if open {
		b.tasks.Go(f)
	}
	return open
}

// call runs f in the background while no other call for the owner runs, and waits until f or ctx ends. A statement on the
// connection of a hold must not be interrupted when its caller gives up, which would end the connection, and a release must
// not pass an attempt whose caller has given up.
func (b *Backend) call(ctx context.Context, owner string, f func(context.Context) error) error {
	done := make(chan error, 1)
	task := func() {
		own, cancel := b.bounded(ctx)
		defer cancel()
		leave, err := b.owners.Lock(own, owner)
		if err == nil {
			err = f(own)
			leave()
		}
		done <- err
	}
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case !b.goTask(task):
		return driver.ErrClosed
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("no answer yet: %w", ctx.Err())
	}
}

// bounded returns a context that also ends with the backend.
func (b *Backend) bounded(ctx context.Context) (own context.Context, end func()) {
	own, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(b.ctx, cancel)
	return own, func() { stop(); cancel() }
}

// holdOf returns an owner's connection that has a lock, or nil.
func (b *Backend) holdOf(owner string) *lockConn {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.holds[owner]
}

func (b *Backend) allHolds() map[string]*lockConn {
	b.mu.Lock()
	defer b.mu.Unlock()
	return maps.Clone(b.holds)
}

// committed reports once whether a Commit has ended an owner's hold.
func (b *Backend) committed(owner string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	was := b.over[owner]
	delete(b.over, owner)
	return was
}
