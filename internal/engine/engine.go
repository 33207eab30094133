// Package engine makes locks of a store that keeps one text for each name, has a clock, and replaces a text, or a part of it,
// if it is still what the caller believes. A row of a table is enough. Package claims decides who holds; the store decides
// nothing.
//
// Three rules make that safe, whatever is lost, late or repeated on the way:
//
//  1. A grant or a renewal is void once its own end has passed (Change.Before). So nothing revives a hold, and nothing that
//     arrives late takes effect when others may hold.
//  2. The end of an own hold counts from an upper bound of the store's clock: its last answer, and the time since that was
//     asked. The end of another's hold counts from a clock that the store has told in the same call. So no hold is shorter
//     than its TTL, and none is passed early.
//  3. A write without an answer is answered by a write. What adds a claim is stamped, and a Release that finds nothing of its
//     owner makes void all that has no greater stamp than the lost write (Change.Stamp, Void). No timer decides.
//
// A text has a line for each claim. What a holder or a waiter needs changes its own line only, whatever others make of theirs:
// a renewal, a release, a place, a place that becomes a hold, a reader beside readers. The store checks what is ahead of the
// line (Change.Ahead). All else replaces the whole text of one version: a semaphore, and what takes dead claims away.
//
// The version of a text is also the number of the grant that it came with. It never falls, and is at least the store's clock
// in µs, so fences are made of it.
package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/claims"
	"github.com/distlock/distlock/internal/metajson"
	"github.com/distlock/distlock/internal/wait"
)

// Backend keeps locks in a Store. It implements driver.Backend, Watcher and Inspector, and is safe for concurrent use.
type Backend struct {
	store   Store
	options Options
	address string
	turns   wait.KeyedMutex[string]
	meta    metajson.Cache
	memory  memory
	waiters waiters

	ctx    context.Context // ends with the backend
	cancel context.CancelFunc
	tasks  wait.Group
	once   sync.Once
	err    error // of Close
}

// Options of a Backend.
type Options struct {
	Package string // for errors: "pglock"
	Name    string // Caps.Name

	// Address is for stores in which a waiter hears only from who is ahead of it (Waiter.Follow). It returns what others follow
	// the backend by now: its own address, and something of the store's. It is to be of use for a while; "": it can't be followed.
	Address func(own string, life time.Duration) string

	// Clock is the store's clock, if this process has the same; nil: it is known from answers only.
	Clock func() int64
}

// New returns a backend. It sends nothing.
func New(s Store, o Options) *Backend {
	b := &Backend{store: s, options: o, address: strings.ReplaceAll(driver.NewOwner()[:driver.OwnersStart], "-", "")}
	b.memory.address, b.memory.clock = b.address, o.Clock
	b.ctx, b.cancel = context.WithCancel(context.Background())
	b.waiters.byName, b.waiters.byEnd = map[string]map[*waiter]struct{}{}, map[string]map[*waiter]struct{}{}
	return b
}

// follow returns the address that a claim has which is written now, and lasts for a while.
func (b *Backend) follow(life time.Duration) string {
	if b.options.Address == nil {
		return b.address
	}
	return b.options.Address(b.address, life)
}

// mine reports whether a claim with an address is this backend's.
func (b *Backend) mine(address string) bool { return strings.HasPrefix(address, b.address) }

// Caps reports all modes, fences, detached holds, and queues on request.
func (b *Backend) Caps() driver.Caps {
	return driver.Caps{
		Name: b.options.Name, Modes: driver.AllModes, Downgrade: true, Queueing: driver.QueueOnRequest,
		Fence: true, Floor: true, Detached: true, MinTTL: claims.MinTTL, MaxTTL: claims.MaxTTL,
	}
}

// Close ends the backend's goroutines, and closes the store. Holds stay until they are released by another backend or
// their TTL has passed.
func (b *Backend) Close() error {
	b.once.Do(func() {
		b.waiters.close(b.cancel)
		b.tasks.Wait()
		b.err = b.wrap("close", "", b.store.Close())
	})
	return b.err
}

// usable refuses calls after Close, and calls whose context has ended: nothing of them is sent.
func (b *Backend) usable(ctx context.Context) error {
	if b.ctx.Err() != nil {
		return driver.ErrClosed
	}
	return driver.Unsent(ctx.Err())
}

// wrap names the call that failed.
func (b *Backend) wrap(op, name string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %s %s: %w", b.options.Package, op, driver.Quote(name), err)
}

// notFinal makes an answer about a hold unknown that is final for an attempt: a text that can't be read or written says
// nothing about the hold.
func notFinal(err error) error {
	if errors.Is(err, driver.ErrInvalid) || errors.Is(err, driver.ErrUnsupported) {
		return errors.New(err.Error())
	}
	return err
}

// Inspect describes a lock.
func (b *Backend) Inspect(ctx context.Context, name string) (driver.Info, error) {
	l, err := b.read(ctx, name)
	if err != nil {
		return driver.Info{}, b.wrap("inspect", name, err)
	}
	info := l.Info(name, l.now*micro)
	sinceGrant(info.Holders, l.now)
	return info, nil
}

// sinceGrant makes holders have held since their grants, whose numbers have the store's clock: a claim's own time is an estimate,
// which a slow answer puts ahead of that.
func sinceGrant(holders []driver.Holder, now int64) {
	for i := range holders {
		h := &holders[i]
		h.Held = max(h.Held, time.Duration((now-int64(h.Fence>>claims.SpanBits))*micro))
	}
}

// List yields the names with holders or waiters.
func (b *Backend) List(ctx context.Context, prefix string, yield func(name string) bool) error {
	idle := map[string]bool{}
	err := claims.Pages(prefix, func(after string) (names []string, err error) {
		if err = b.usable(ctx); err == nil {
			names, err = b.store.Names(ctx, prefix, after, claims.ListPage)
		}
		if err == nil {
			idle, err = b.idle(ctx, names)
		}
		return names, err
	}, func(name string) bool { return idle[name] || yield(name) })
	return b.wrap("list", prefix, err)
}

// idle returns those of the names that have no claims: the last one to end may have been released.
func (b *Backend) idle(ctx context.Context, names []string) (map[string]bool, error) {
	all, err := b.readAll(ctx, names)
	idle := map[string]bool{}
	for i, seen := range all {
		l, bad := see(seen)
		idle[names[i]] = bad == nil && len(l.Claims) == 0
	}
	return idle, err
}

// maxBatch is how many locks one Read or Swap is about. Their texts are locked for some ms.
const maxBatch = 512

// read reads a lock.
func (b *Backend) read(ctx context.Context, name string) (*lock, error) {
	list, err := b.readAll(ctx, []string{name})
	if err != nil {
		return nil, err
	}
	return see(list[0])
}

// readAll reads what the store has, at most maxBatch names at a time.
func (b *Backend) readAll(ctx context.Context, names []string) (all []Seen, err error) {
	for part := range slices.Chunk(names, maxBatch) {
		if err := b.usable(ctx); err != nil {
			return nil, err
		}
		asked := time.Now()
		list, err := b.store.Read(ctx, part)
		if err != nil {
			return nil, err
		}
		b.memory.told(list[0].Now, asked)
		all = append(all, list...)
	}
	return all, nil
}

// swap makes one change, and remembers the clock. jumped: a hold that the change makes last may be shorter than its TTL.
func (b *Backend) swap(ctx context.Context, c Change) (out Outcome, jumped bool) {
	asked := time.Now()
	out = b.store.Swap(ctx, []Change{c})[0]
	return out, b.memory.told(out.Seen.Now, asked)
}
