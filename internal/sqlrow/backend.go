// Package sqlrow keeps locks in rows of a table. A Dialect has the statements of one database. A row
// is the only record of a lock. It is never deleted, because fences are made of its number.
//
// An exclusive hold is taken by one conditional UPDATE, and released by another. All other claims
// (readers, permits, waiters in the queue) are a list in the row. One UPDATE adds or removes a claim by the text of
// the list (Dialect.Contend, Drop). What that can't decide is read, changed here, and
// written if the row has not changed meanwhile. No transaction stays open between two statements,
// so a process that hangs blocks others only by the locks that it holds.
//
// All times come from the server's clock, read in the statement that uses them.
package sqlrow

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/claims"
	"github.com/distlock/distlock/internal/metajson"
	"github.com/distlock/distlock/internal/wait"
)

// Options of a Backend.
type Options struct {
	// Package is the name of the package for errors: "mysqllock".
	Package string

	// Name is Caps.Name.
	Name string

	// Notifier makes the notifier, which may call Wake and WakeAll of the backend. If it is nil, waiters
	// poll.
	Notifier func(*Backend) Notifier

	// Pushed means that the notifier calls Wake or WakeOwner for all that concerns a waiter here, whichever address a
	// claim has.
	Pushed bool
}

// maxRowWaits is how many renewals of a backend wait for locked rows at once, each on a connection.
const maxRowWaits = 2

// Backend keeps locks in rows of a table. Its methods are safe for concurrent use. It
// implements driver.Backend, driver.Watcher and driver.Inspector.
type Backend struct {
	dialect  Dialect
	options  Options
	notifier Notifier
	changing wait.KeyedMutex[Key]
	watchers watcherSet
	meta     metajson.Cache
	late     lateAttempts
	rowWaits chan struct{} // has an entry for each renewal that waits for a row

	ctx    context.Context // ends with the backend
	cancel context.CancelFunc
	once   sync.Once
	err    error // of Close
}

// New returns a backend for a table that exists. It sends no statement.
func New(d Dialect, o Options) *Backend {
	b := &Backend{dialect: d, options: o, notifier: polling{}, rowWaits: make(chan struct{}, maxRowWaits)}
	b.ctx, b.cancel = context.WithCancel(context.Background())
	b.watchers = watcherSet{b: b, byKey: map[Key]*rowWatcher{}}
	if o.Notifier != nil {
		b.notifier = o.Notifier(b)
	}
	return b
}

// Caps reports fences, detached holds, all modes, and queues on request.
func (b *Backend) Caps() driver.Caps {
	return driver.Caps{
		Name: b.options.Name, Modes: driver.AllModes, Downgrade: true, Queueing: driver.QueueOnRequest,
		Fence: true, Floor: true, Detached: true, MinTTL: claims.MinTTL, MaxTTL: claims.MaxTTL,
	}
}

// Wake wakes the waiters for k, which may be free. It does not block.
func (b *Backend) Wake(k Key) { b.watchers.wake(k) }

// WakeOwner wakes the waiter whose owner has this end, the only one that a release lets in. It does not block.
func (b *Backend) WakeOwner(k Key, end string) { b.watchers.wakeOwner(k, end) }

// WakeAll wakes the waiters for all locks, after notifications may have been missed.
func (b *Backend) WakeAll() { b.watchers.wakeAll() }

// open refuses calls after Close, and calls whose context has ended: nothing of them is sent.
func (b *Backend) open(ctx context.Context) error {
	if b.ctx.Err() != nil {
		return driver.ErrClosed
	}
	return driver.Unsent(ctx.Err())
}

// Close ends the backend's goroutines, and closes the notifier. Holds stay until they are
// released by another backend or their TTL has passed.
func (b *Backend) Close() error {
	b.once.Do(func() {
		b.watchers.close()
		b.err = b.wrap("close", "", b.notifier.Close())
	})
	return b.err
}

// wrap names the call that failed.
func (b *Backend) wrap(op, name string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %s %s: %w", b.options.Package, op, driver.Quote(name), err)
}

// Inspect describes a lock. It does not wait for writers.
func (b *Backend) Inspect(ctx context.Context, name string) (driver.Info, error) {
	i, err := b.inspect(ctx, name)
	return i, b.wrap("inspect", name, err)
}

func (b *Backend) inspect(ctx context.Context, name string) (driver.Info, error) {
	if err := b.open(ctx); err != nil {
		return driver.Info{}, err
	}
	s, err := b.readRow(ctx, name)
	if err != nil {
		return driver.Info{}, err
	}
	return s.Info(name, s.now), nil
}

// List yields the names that are held or waited for. yield may call the backend.
func (b *Backend) List(ctx context.Context, prefix string, yield func(name string) bool) error {
	return b.wrap("list", prefix, b.list(ctx, prefix, yield))
}

func (b *Backend) list(ctx context.Context, prefix string, yield func(name string) bool) error {
	return claims.Pages(prefix, func(after string) ([]string, error) {
		if err := b.open(ctx); err != nil {
			return nil, err
		}
		return b.dialect.Names(ctx, prefix, after, claims.ListPage)
	}, yield)
}

// readRow reads one row.
func (b *Backend) readRow(ctx context.Context, name string) (*state, error) {
	now, rows, err := b.dialect.Read(ctx, []string{name})
	switch {
	case err != nil:
		return nil, err
	case len(rows) > 0:
		return read(rows[0], now)
	case now == 0:
		return nil, errNoAnswer
	}
	return read(Row{}, now)
}

// errNoAnswer is for a Read that says nothing. That is no proof that there is no row.
var errNoAnswer = errors.New("the database answered without its clock, so it has not looked for the lock's row")

// readRows reads the rows of up to MaxExtend names. The state of a name is nil if no row was answered for it: a limit of the
// database on results can be the reason.
func (b *Backend) readRows(ctx context.Context, names []string) (func(name string) (*state, error), error) {
	now, rows, err := b.dialect.Read(ctx, names)
	if err != nil {
		return nil, err
	}
	byKey := make(map[Key]Row, len(rows))
	for _, r := range rows {
		byKey[r.Key] = r
	}
	return func(name string) (*state, error) {
		row, ok := byKey[KeyOf(name)]
		if !ok {
			return nil, nil
		}
		return read(row, now)
	}, nil
}
