// Package connlock keeps locks that live on a database connection. The server ends such a lock with
// its connection. The package is one backend over a small [Dialect].
//
// # Connections
//
// A lock has a connection of its own. It is taken out of the user's pool, kept for a while after an answered release for the
// next lock, and closed in the end, since its settings have changed. One connection of a limited pool is always left for
// others. The server refuses a lock that another connection has, so nothing here decides who holds.
//
// # Trust
//
// Each connection lets the server end it after a silence of its hold's TTL. The
// server measures that from the end of a statement, the client from before it sent the statement, so
// the client's trust ends first. Only an answered statement prolongs it. A connection without an
// answer for its TTL is closed, and its hold is lost. If the server ends it sooner, that is noticed at the latest by the next
// renewal. A release on a connection that has ended already is a loss. What one without an answer
// has done is unknown.
// A connection that has failed is never used again, and another one asks the server to end it.
//
// # Numbers
//
// Fences are made from numbers in a table. If the lock's connection can't write the number, another connection does:
// its transaction may be rolled back, or others have locked the row, which must not keep it from being renewed. The
// lock's own connection is checked afterwards: if it answers, it has the lock, and the next holder gets a greater number.
//
// # Waiting
//
// With Config.Polling waiters poll. Otherwise a Watch waits in the server's own queue, on a connection of its own, and takes the
// lock for its Owner. It waits in slices: a waiter that never returns holds back vacuum, and may have
// died long ago. The connection of a wait that is given up is killed through another one.
package connlock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
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

	// Joins means that the caller's work can join the transaction that has a lock, see Commit.
	Joins bool

	// Polling means that waiters poll: Dialect has no wait that is harmless to others.
	Polling bool

	// Explain adds to an error of the server what it means; nil: nothing.
	Explain func(error) error
}

// The bounds of TTLs. Opening a connection may take as long as the lower one on a bad day.
const (
	minTTL = time.Second
	maxTTL = 24 * time.Hour
)

const (
	waitSlice   = 10 * time.Second // of one wait in the server's queue
	cleanupTime = 2 * time.Second  // for what follows an error
	historyTime = 10 * time.Minute // how long the ends of holds are remembered
)

// Backend keeps locks on connections. It is safe for concurrent use.
type Backend struct {
	Config
	caps    driver.Caps
	ctx     context.Context // ends with Close
	cancel  context.CancelFunc
	tasks   wait.Group
	owners  wait.KeyedMutex[string]
	keys    wait.KeyedMutex[string]
	waiting atomic.Int32 // connections that wait
	pool    *sql.DB      // of connections for locks, each of which is one of Config.DB

	mu     sync.Mutex
	closed bool
	holds  map[string]*hold  // by owner
	ended  map[string]ending // by owner
}

// Caps describes the backend.
func (b *Backend) Caps() driver.Caps { return b.caps }

// Inspect is not implemented: servers do not know the names of locks.
func (b *Backend) Inspect(context.Context, string) (driver.Info, error) {
	return driver.Info{}, driver.ErrSkip
}

// List is not implemented.
func (b *Backend) List(context.Context, string, func(string) bool) error { return driver.ErrSkip }

// errIfClosed returns ErrClosed after Close.
func (b *Backend) errIfClosed() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return driver.ErrClosed
	}
	return nil
}

// wrapError adds the call to an error, unless the error is a definite answer.
func (b *Backend) wrapError(call, name string, err error) error {
	switch {
	case err == nil || errors.Is(err, driver.ErrLost) || errors.Is(err, driver.ErrHeld) || errors.Is(err, driver.ErrClosed):
		return err
	case b.ctx.Err() != nil:
		return driver.ErrClosed
	}
	if b.Explain != nil {
		err = b.Explain(err)
	}
	return fmt.Errorf("%s: %s %s: %w", b.Package, call, driver.Quote(name), err)
}

// goTask runs f in the background, unless the backend is closed.
func (b *Backend) goTask(f func()) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.closed {
		b.tasks.Go(f)
	}
	return !b.closed
}

// withOwner is detach while no other call for the owner runs: a release must not pass an attempt whose caller has given up.
// It waits for no other owner, whose attempt may wait for a connection that a release makes room for.
func (b *Backend) withOwner(ctx context.Context, owner string, f func(context.Context) error) error {
	return b.detach(ctx, func(own context.Context) error {
		leave, err := b.owners.Lock(own, owner)
		if err != nil {
			return err
		}
		defer leave()
		return f(own)
	})
}

// detach runs f in the background, and waits until f or ctx ends. A statement on the connection of a hold must not be
// interrupted when its caller gives up: that would end the connection.
func (b *Backend) detach(ctx context.Context, f func(context.Context) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	done := make(chan error, 1)
	task := func() {
		own, cancel := b.bounded(ctx)
		defer cancel()
		done <- f(own)
	}
	if !b.goTask(task) {
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

// hold is a lock that a connection has for an owner.
type hold struct {
	conn  *lockConn
	lock  Lock
	since time.Time

	working atomic.Bool // the caller's work has the connection
	revoked atomic.Bool // it was released meanwhile

	onLost func() // or nil; guarded by Backend.mu
}

// enter notes that a connection has a lock. It returns errGone if the connection has ended, or the owner has the lock
// through another one.
func (b *Backend) enter(c *lockConn, l Lock) (*hold, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed || c.dead || b.holds[l.Owner] != nil {
		return nil, errGone
	}
	h := &hold{conn: c, lock: l, since: time.Now()}
	c.hold, b.holds[l.Owner] = h, h
	delete(b.ended, l.Owner)
	return h, nil
}

// holdOf returns an owner's hold, or nil. An empty name stands for any.
func (b *Backend) holdOf(owner, name string) *hold {
	b.mu.Lock()
	defer b.mu.Unlock()
	if h := b.holds[owner]; h != nil && (name == "" || h.lock.Name == name) {
		return h
	}
	return nil
}

// isCurrent reports whether h has not ended.
func (h *hold) isCurrent() bool {
	b := h.conn.b
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.holds[h.lock.Owner] == h
}

// orLost returns err if the hold has not ended. Otherwise that is a loss, and no unknown outcome.
func (h *hold) orLost(err error) error {
	switch {
	case err == nil || errors.Is(err, driver.ErrLost) || h.isCurrent():
		return err
	case h.conn.b.ctx.Err() != nil:
		return driver.ErrClosed
	}
	return fmt.Errorf("%w: %w", driver.ErrLost, err)
}

// setOnLost sets what is called when the hold is lost. It returns errGone if it has ended already.
func (h *hold) setOnLost(onLost func()) error {
	b := h.conn.b
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.holds[h.lock.Owner] != h {
		return errGone
	}
	h.onLost = onLost
	return nil
}

// ending is how a hold ended that was not released.
type ending struct {
	at        time.Time
	committed bool // by its Commit, and not released since; otherwise it was lost
}

// remove removes a hold. b.mu is held.
func (b *Backend) remove(h *hold) {
	h.conn.hold = nil
	delete(b.holds, h.lock.Owner)
}

// remember notes how an owner's hold ended. b.mu is held.
func (b *Backend) remember(owner string, committed bool) {
	maps.DeleteFunc(b.ended, func(_ string, e ending) bool { return time.Since(e.at) > historyTime })
	b.ended[owner] = ending{time.Now(), committed}
}

// howEnded returns how an owner's hold ended, as far as that is remembered. A committed one is lost to later calls: a
// dialect may still name its connection as the holder's.
func (b *Backend) howEnded(owner string) (e ending, known bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e, known = b.ended[owner]
	if e.committed {
		b.remember(owner, false)
	}
	return e, known
}
