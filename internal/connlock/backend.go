// Package connlock keeps locks that live on a database connection. The server ends such a lock with
// its connection. The package is one backend over a small [Dialect].
//
// # Connections
//
// Connections are taken out of the user's pool, and closed when they are no longer needed, since
// their settings have changed. Either a connection has many locks (MySQL's GET_LOCK, PostgreSQL's
// session level), and up to four connections share the holds of one TTL; or it has one, whose
// transaction the caller's work can join (OnePerConn). One connection of a limited pool is always
// left for others. If there is no room for a lock, Acquire returns an error; waiters poll instead.
//
// # Trust
//
// Each connection lets the server end it after a silence of the TTL of its holds. The
// server measures that from the end of a statement, the client from before it sent the statement, so
// the client's trust ends first. Only an answered statement prolongs it. A connection without an
// answer for its TTL is closed, and its holds are lost. So are holds whose connection the server
// ends sooner: that is noticed at the latest by the next renewal. A release without an answer is a
// loss: the server may have ended the connection before, and granted the lock to another client.
//
// # Numbers
//
// Fences are made from numbers in a table. A connection with many locks writes them itself, but does
// not wait for a row that others keep locked, since its other locks could not be renewed meanwhile.
// Then another connection writes the number, and the lock's own connection is checked afterwards: if
// it answers, it has the lock, and the next holder gets a greater number.
//
// # Two holders on one connection
//
// The server grants a lock to a connection again at every request of that connection. So calls for one key
// take turns, and a request that conflicts with a hold of this process is refused before a statement
// is sent. The key is the server's name of the lock. Two names may share a key, and then exclude each
// other.
//
// # Waiting
//
// With Config.Polling waiters poll. Otherwise a Watch waits in the server's own queue, on a connection that does nothing else, and takes the
// lock for its Owner. It waits in slices: a waiter that never returns holds back vacuum, and may have
// died long ago. A wait that is given up is cancelled on the server. A lock that was granted at the
// last moment is released on the same connection. If the outcome is unknown, the connection is
// closed, and killed through another one.
package connlock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
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

	// OnePerConn means that a connection has one lock.
	OnePerConn bool

	// SeparateNumbers means that connections write no numbers: their transaction may be rolled back.
	SeparateNumbers bool

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
	caps     driver.Caps
	ctx      context.Context // ends with Close
	cancel   context.CancelFunc
	tasks    wait.Group
	keyMutex wait.KeyedMutex[string]

	mu        sync.Mutex
	closed    bool
	conns     map[*lockConn]struct{} // all open ones
	shared    []*lockConn            // those that new holds may join
	idle      []*lockConn            // those without holds and attempts
	opening   int                    // connections that are being opened
	waiting   int                    // connections that wait
	byOwner   map[string]*connHold
	byKey     map[string]*connHold
	orphans   map[string]*orphan // by owner
	committed recentSet          // owners whose holds ended with their commit
	lost      recentSet          // owners whose holds were lost, or were released after their commit
}

var (
	// errSilent: the server may have ended the connection by now.
	errSilent = errors.New("the connection had no answer for the TTL of its holds")

	errGone = errors.New("the connection was lost")
)

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

// withKey runs f in the background while it holds the mutex of a key, and waits until f or ctx
// ends. A statement must not be interrupted when its caller gives up: that would end the connection
// and all its holds.
func (b *Backend) withKey(ctx context.Context, key string, f func(context.Context) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	leave, err := b.keyMutex.Lock(ctx, key)
	if err != nil {
		return err
	}
	return b.detach(ctx, func(own context.Context) error {
		defer leave()
		return f(own)
	}, leave)
}

// detach is withKey without the mutex. It calls unused if it does not call f.
func (b *Backend) detach(ctx context.Context, f func(context.Context) error, unused func()) error {
	done := make(chan error, 1)
	task := func() {
		own, cancel := b.bounded(ctx)
		defer cancel()
		done <- f(own)
	}
	if !b.goTask(task) {
		unused()
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

// lockConn is a connection and its holds.
type lockConn struct {
	b     *Backend
	conn  Conn
	lease time.Duration // by which it is listed

	sem        chan struct{} // holds a token while no statement is sent
	maxSilence time.Duration // as the server was last set; guarded by sem
	lastSent   time.Time     // when the last answered statement was sent; guarded by sem

	// Guarded by Backend.mu.
	holds       map[string]*connHold // by owner
	attempts    int                  // under way
	dead        bool
	idleSince   time.Time
	longerLease bool // maxSilence exceeds lease, for the sake of some holds
}

// do calls f, which sends statements, while no other statement is sent. ctx bounds the wait for that. The
// statements end when the connection can't be trusted any more.
func (c *lockConn) do(ctx context.Context, f func(context.Context) error) error {
	return c.doFor(ctx, 0, f)
}

// doFor is do for statements that may take extra time.
func (c *lockConn) doFor(ctx context.Context, extra time.Duration, f func(context.Context) error) error {
	select {
	case <-c.sem:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { c.sem <- struct{}{} }()
	if c.isDead() {
		return errGone
	}
	sent := time.Now()
	end := c.lastSent.Add(c.maxSilence)
	if !sent.Before(end) {
		c.lose(errSilent)
		return errSilent
	}
	own, cancel := context.WithDeadline(c.b.ctx, end.Add(extra))
	defer cancel()
	if err := f(own); err != nil {
		return err
	}
	if own.Err() != nil {
		c.lose(errSilent) // a driver may close the connection then, and still return the answer
		return errSilent
	}
	if extra > 0 {
		sent = time.Now() // it waited in the server, and was not silent
	}
	c.lastSent = sent
	return nil
}

func (c *lockConn) isDead() bool {
	c.b.mu.Lock()
	defer c.b.mu.Unlock()
	return c.dead
}

// extend lets the connection live on for as long as its holds were promised, and no longer. An error ends it.
func (c *lockConn) extend(ctx context.Context) error {
	return c.do(ctx, func(own context.Context) (err error) {
		ttl := c.b.promised(c)
		if ttl == c.maxSilence {
			err = c.conn.Ping(own)
		} else {
			err = c.conn.Lease(own, ttl)
		}
		if err != nil {
			c.lose(err)
			return fmt.Errorf("%w: %w", errGone, err)
		}
		c.maxSilence = ttl
		return nil
	})
}

// promise notes that a hold is to live for ttl after each renewal. It returns what undoes that, if the renewal fails.
func (b *Backend) promise(h *connHold, ttl time.Duration) (undo func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	was := h.ttl
	h.ttl = max(was, ttl)
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		h.ttl = was
	}
}

// promised returns for how long a connection must live after a renewal.
func (b *Backend) promised(c *lockConn) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	ttl := c.lease
	for _, h := range c.holds {
		ttl = max(ttl, h.ttl)
	}
	c.longerLease = ttl > c.lease
	return ttl
}

// pingAfter ends a connection that does not answer after an error. c.sem is held.
func (c *lockConn) pingAfter(cause error) {
	ctx, cancel := context.WithTimeout(c.b.ctx, cleanupTime)
	defer cancel()
	sent := time.Now()
	if err := c.conn.Ping(ctx); err != nil {
		c.lose(fmt.Errorf("%w: %w", cause, err))
		return
	}
	c.lastSent = sent
}

// undo makes sure that the connection does not have a lock, after an error, or ends it. c.sem is held.
func (c *lockConn) undo(l Lock, cause error) {
	ctx, cancel := context.WithTimeout(c.b.ctx, cleanupTime)
	defer cancel()
	if err := c.conn.Undo(ctx, l); err != nil {
		c.lose(errors.Join(cause, err), l.Owner)
	}
}

// lose ends a connection: its holds are lost. Suspects are owners that may also have got a lock on
// it. c.sem is held.
func (c *lockConn) lose(cause error, suspects ...string) {
	b := c.b
	b.mu.Lock()
	if c.dead {
		b.mu.Unlock()
		return
	}
	b.removeConn(c)
	var gone []*connHold
	for owner, h := range c.holds {
		gone = append(gone, h)
		suspects = append(suspects, owner)
		b.removeHold(h)
		if b.byOwner[owner] == nil {
			b.lost.add(owner)
		}
	}
	closed := b.closed
	b.trackOrphan(c, suspects)
	b.mu.Unlock()
	c.conn.Close()
	if closed {
		return
	}
	for _, h := range gone {
		h.notifyLost()
	}
}

// removeConn removes a connection from all lists. b.mu is held.
func (b *Backend) removeConn(c *lockConn) {
	c.dead = true
	delete(b.conns, c)
	b.shared, b.idle = without(b.shared, c), without(b.idle, c)
}

func without(list []*lockConn, c *lockConn) []*lockConn {
	return slices.DeleteFunc(list, func(other *lockConn) bool { return other == c })
}

// orphan is a connection that was given up, and that the server may still have with a lock.
type orphan struct {
	id    string
	until time.Time // the server has ended it by then
}

// trackOrphan notes the owners that a lost connection may have locks for, and has it killed. If that fails,
// the owner's next call tries again. b.mu and c.sem are held.
func (b *Backend) trackOrphan(c *lockConn, owners []string) {
	for owner, old := range b.orphans {
		if time.Now().After(old.until) {
			delete(b.orphans, owner)
		}
	}
	if b.closed || len(owners) == 0 {
		return
	}
	o := &orphan{id: c.conn.ID(), until: time.Now().Add(max(c.lease, c.maxSilence) + waitSlice + cleanupTime)}
	for _, owner := range owners {
		b.orphans[owner] = o
	}
	b.tasks.Go(func() { b.killOrphan(b.ctx, o) })
}

func (b *Backend) killOrphan(ctx context.Context, o *orphan) error {
	if time.Now().Before(o.until) {
		ctx, cancel := context.WithTimeout(ctx, cleanupTime)
		defer cancel()
		if err := b.Dialect.Kill(ctx, o.id); err != nil {
			return fmt.Errorf("a lost connection that may have the lock can't be ended: %w", err)
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for owner, old := range b.orphans {
		if old == o {
			delete(b.orphans, owner)
		}
	}
	return nil
}

// killOrphanOf makes sure that no lost connection has a lock for an owner.
func (b *Backend) killOrphanOf(ctx context.Context, owner string) error {
	b.mu.Lock()
	o := b.orphans[owner]
	b.mu.Unlock()
	if o == nil {
		return nil
	}
	return b.killOrphan(ctx, o)
}

// connHold is a lock that a connection has for an owner.
type connHold struct {
	lock  Lock
	conn  *lockConn
	since time.Time
	ttl   time.Duration // that was promised, if it is longer than the connection's lease; guarded by Backend.mu

	working atomic.Bool // the caller's work has the connection
	revoked atomic.Bool // it was released meanwhile

	mu     sync.Mutex
	onLost func()
	lost   bool
}

// enterHold adds a hold, and removes a stale one of the same key, whose connection has ended: the caller calls its
// notifyLost. b.mu is held.
func (b *Backend) enterHold(c *lockConn, l Lock) (h, stale *connHold) {
	if stale = b.byKey[l.Key]; stale != nil {
		b.removeHold(stale)
	}
	h = &connHold{lock: l, conn: c, since: time.Now()}
	c.holds[l.Owner] = h
	b.byOwner[l.Owner] = h
	b.byKey[l.Key] = h
	delete(b.committed, l.Owner)
	delete(b.lost, l.Owner)
	return h, stale
}

// removeHold removes a hold. b.mu is held.
func (b *Backend) removeHold(h *connHold) {
	deleteIf(h.conn.holds, h.lock.Owner, h)
	deleteIf(b.byOwner, h.lock.Owner, h)
	deleteIf(b.byKey, h.lock.Key, h)
}

// deleteIf deletes a hold from a map, unless another one has taken its place.
func deleteIf(m map[string]*connHold, key string, h *connHold) {
	if m[key] == h {
		delete(m, key)
	}
}

// holdOf returns an owner's hold of a name, or nil.
func (b *Backend) holdOf(d driver.Hold) *connHold {
	b.mu.Lock()
	defer b.mu.Unlock()
	h := b.byOwner[d.Owner]
	if h == nil || h.lock.Name != d.Name {
		return nil
	}
	return h
}

// isCurrent reports whether h has not ended.
func (b *Backend) isCurrent(h *connHold) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.byOwner[h.lock.Owner] == h
}

// notifyLost calls OnLost once.
func (h *connHold) notifyLost() {
	h.mu.Lock()
	f := h.onLost
	if h.lost {
		f = nil
	}
	h.lost = true
	h.mu.Unlock()
	if f != nil {
		f()
	}
}

// setOnLost replaces OnLost, and calls it if the hold has been lost already.
func (h *connHold) setOnLost(onLost func()) {
	h.mu.Lock()
	h.onLost = onLost
	lost := h.lost
	h.mu.Unlock()
	if lost && onLost != nil {
		onLost()
	}
}

// holder describes the hold to a rival.
func (h *connHold) holder() driver.Holder {
	return driver.Holder{Owner: h.lock.Owner, Mode: driver.Exclusive, Held: time.Since(h.since), Left: -1, Meta: h.lock.Meta}
}

// recentSet is a set of strings, each of which it keeps for historyTime.
type recentSet map[string]time.Time

func (s recentSet) add(key string) {
	maps.DeleteFunc(s, func(_ string, added time.Time) bool { return time.Since(added) > historyTime })
	s[key] = time.Now()
}

func (s recentSet) has(key string) bool {
	added, ok := s[key]
	return ok && time.Since(added) < historyTime
}
