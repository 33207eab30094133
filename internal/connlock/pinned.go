package connlock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/keyedmutex"
)

// Lock is what a link is asked for.
type Lock struct {
	Name           string
	Key            string // what the server locks
	Owner          string
	Meta           map[string]string
	Probe          bool // it is nobody's: whether it is granted is all that matters, and no number
	SeparateNumber bool // the link does not write its number
}

// Dialect speaks to one kind of server.
type Dialect interface {
	// Key is what the server locks for a name. Different names may have one key.
	Key(name string) string

	// NewConn makes a link of a fresh connection, which the server ends when it is silent for
	// longer than lease.
	NewConn(ctx context.Context, conn *sql.Conn, lease time.Duration) (Conn, error)

	// Cancel ends the statement that a link has under way, through another connection.
	Cancel(ctx context.Context, id string) error

	// Kill ends a link through another connection. nil: it has gone.
	Kill(ctx context.Context, id string) error

	// KillHolder ends the link of another process that has l for its Owner, if there is one.
	KillHolder(ctx context.Context, l Lock) (was bool, err error)

	// Number writes the next number of a lock that the link with this ID has, through another
	// connection.
	Number(ctx context.Context, l Lock, id string) (uint64, error)

	// RemoveProbe removes what a Trial has left in tables, if anything.
	RemoveProbe(ctx context.Context, l Lock) error

	// CommitRefused reports whether err is the server's word that it did not commit.
	CommitRefused(err error) bool
}

// Conn is one pinned connection. Its methods send statements, one at a time; they are not
// called again before the last has returned.
type Conn interface {
	// ID is what Cancel and Kill know the connection by.
	ID() string

	// Lease sets for how long the server lets the connection be silent.
	Lease(ctx context.Context, lease time.Duration) error

	// Ping asks the server something.
	Ping(ctx context.Context) error

	// TryLock makes one attempt, and answers the number of the grant; 0 if Dialect.Number is to
	// write it: with Apart, or because somebody keeps its row locked, for which it does not wait.
	TryLock(ctx context.Context, l Lock) (number uint64, ok bool, err error)

	// WaitLock is Take for up to slice, without a number.
	WaitLock(ctx context.Context, l Lock, slice time.Duration) (ok bool, err error)

	// Number is the next number of a lock that this link has; 0 as in Take. Not with Apart.
	Number(ctx context.Context, l Lock) (uint64, error)

	// Confirm asks the server on this link, after Dialect.Number. nil: the link has the lock.
	Confirm(ctx context.Context, l Lock) error

	// Unlock gives a lock back that this link has. ErrLost: the server says that it had not.
	Unlock(ctx context.Context, l Lock) error

	// Undo is asked after an error of Take or Wait. nil: this link does not have the lock,
	// and can be used.
	Undo(ctx context.Context, l Lock) error

	// Alive looks whether the connection is closed, without asking the server.
	Alive() error

	// Tx is the transaction that has the lock; nil if links have many locks.
	Tx() *sql.Tx

	// Commit commits it. The link does not have the lock after that, or an error tells.
	Commit(ctx context.Context) error

	// Close closes the connection.
	Close()
}

// Config makes a Backend.
type Config struct {
	DB              *sql.DB
	Dialect         Dialect
	Package         string // as errors begin: "pglock"
	Name            string // for Caps
	OnePerConn      bool   // a link has one lock
	SeparateNumbers bool   // links write no numbers: what they write ends with their transaction
}

// The bounds of TTLs. Less than a second is less than a connection takes to be made
// on a bad day.
const (
	minTTL = time.Second
	maxTTL = 24 * time.Hour
)

// Bounds of what is used at once.
const (
	maxShared   = 4                // links for the holds of one TTL, beyond which they share
	maxHolds    = 1000             // of one link
	maxWaiting  = 16               // links that wait; the rest polls
	maxIdle     = 16               // links without a hold that are kept
	waitSlice   = 10 * time.Second // of one wait
	cleanupTime = 2 * time.Second  // for what cleans up
	closeTime   = 15 * time.Second // for Close
)

// Backend keeps locks on connections. It is safe for concurrent use.
type Backend struct {
	Config
	caps     driver.Caps
	life     context.Context // ends with Close
	stop     context.CancelFunc
	tasks    sync.WaitGroup
	keyMutex keyedmutex.Mutex[string]

	mu         sync.Mutex
	closed     bool
	conns      map[*lockConn]struct{}        // all that are open
	shared     map[time.Duration][]*lockConn // by lease: those that have holds, or may get some
	idle       map[time.Duration][]*lockConn // by lease: those that nobody uses
	byOwner    map[string]*connHold          // by owner
	byKey      map[string]*connHold          // by key
	orphans    map[string]*orphan            // by owner
	committed  map[string]time.Time          // owners whose holds ended with their commit
	lost       map[string]time.Time          // owners whose holds were lost
	opening    int                           // links that are being opened
	lockedRows map[string]time.Time          // keys with a row that somebody keeps locked
	waiting    int                           // links that wait
}

// New makes a backend, after it has seen that two links exclude each other.
func New(ctx context.Context, c Config) (*Backend, error) {
	b := &Backend{
		Config: c,
		caps: driver.Caps{
			Name: c.Name, Modes: driver.Modes(driver.Exclusive), Fence: true, Session: true, MinTTL: minTTL, MaxTTL: maxTTL,
		},
		conns: map[*lockConn]struct{}{}, shared: map[time.Duration][]*lockConn{}, idle: map[time.Duration][]*lockConn{},
		byOwner: map[string]*connHold{}, byKey: map[string]*connHold{}, orphans: map[string]*orphan{},
		committed: map[string]time.Time{}, lost: map[string]time.Time{}, lockedRows: map[string]time.Time{},
	}
	b.life, b.stop = context.WithCancel(context.Background())
	if err := b.probe(ctx); err != nil {
		b.Close()
		return nil, fmt.Errorf("%s: open: %w", c.Package, err)
	}
	b.goTask(b.watchConns)
	return b, nil
}

// Caps says what the backend can do.
func (b *Backend) Caps() driver.Caps { return b.caps }

// Inspect is not implemented: what the server tells of a connection's locks is no names.
func (b *Backend) Inspect(context.Context, string) (driver.Info, error) {
	return driver.Info{}, driver.ErrSkip
}

// List is not implemented.
func (b *Backend) List(context.Context, string, func(string) bool) error { return driver.ErrSkip }

// goTask runs f in the background, unless the backend is closed.
func (b *Backend) goTask(f func()) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.closed {
		b.tasks.Go(f)
	}
	return !b.closed
}

// validate refuses what can't be asked for.
func (b *Backend) validate(h driver.Hold) error {
	b.mu.Lock()
	closed := b.closed
	b.mu.Unlock()
	switch {
	case closed:
		return driver.ErrClosed
	case h.Mode != driver.Exclusive:
		return fmt.Errorf("%w: mode %v", driver.ErrUnsupported, h.Mode)
	case h.Name == "":
		return fmt.Errorf("%w: a lock without a name", driver.ErrInvalid)
	}
	return nil
}

// wrapError says of an error which call it ended. Facts stay what they are.
func (b *Backend) wrapError(call, name string, err error) error {
	switch {
	case err == nil || errors.Is(err, driver.ErrLost) || errors.Is(err, driver.ErrHeld) || errors.Is(err, driver.ErrClosed):
		return err
	case b.life.Err() != nil:
		return driver.ErrClosed
	}
	return fmt.Errorf("%s: %s %s: %w", b.Package, call, driver.Quote(name), err)
}

// withKey runs f on its own, in the turn of a key, and waits for it or for the end of ctx. A
// statement that is under way must not be cut short with its caller: that would end the
// link, and all that it holds.
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

// detach is detached without a turn. unused is called if f is not.
func (b *Backend) detach(ctx context.Context, f func(context.Context) error, unused func()) error {
	done := make(chan error, 1)
	task := func() {
		own, end := b.bounded(ctx)
		defer end()
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

// bounded is a context that also ends with the backend.
func (b *Backend) bounded(ctx context.Context) (own context.Context, end func()) {
	own, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(b.life, cancel)
	return own, func() { stop(); cancel() }
}
