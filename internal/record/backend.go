package record

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/distlock/distlock/driver"
)

var (
	_ driver.Backend   = (*Backend)(nil)
	_ driver.Watcher   = Pushing{}
	_ driver.Inspector = (*Backend)(nil)
)

// rounds bounds how often a call starts anew because the record was replaced meanwhile.
const rounds = 8

// errMoved says that a write took no effect and never will, because the record has another version.
var errMoved = errors.New("the record was replaced meanwhile")

// Backend is a connection to a Store. It is safe for concurrent use.
type Backend struct {
	store  Store
	caps   driver.Caps
	tokens driver.Owners
	now    func() time.Time
	closed atomic.Bool
	memory memory
}

// New returns a backend. Of caps it takes what is the store's: Name, Floor, Late, the bounds of the TTL and Poll. Floor says that
// the store has no Stamps, and Late that its records have an Age.
func New(store Store, caps driver.Caps) *Backend {
	caps.Modes = driver.Modes(driver.Exclusive)
	caps.Fence, caps.Detached, caps.Observed = true, true, true
	return &Backend{store: store, caps: caps, tokens: driver.NewOwners(), now: time.Now}
}

// WithClock returns b with another monotonic clock than the machine's. It is for tests, and called before all else.
func (b *Backend) WithClock(now func() time.Time) *Backend {
	b.now = now
	return b
}

// Caps returns what was given to New, and what all stores have in common.
func (b *Backend) Caps() driver.Caps { return b.caps }

// Close closes the store. Holds are left to those who watch them end.
func (b *Backend) Close() error {
	if b.closed.Swap(true) {
		return nil
	}
	return b.store.Close()
}

func (b *Backend) usable(ctx context.Context) error {
	if b.closed.Load() {
		return driver.ErrClosed
	}
	return ctx.Err()
}

// own returns the record of h's lock: from memory if that says that h.Owner holds, else from the store.
func (b *Backend) own(ctx context.Context, h *driver.Hold) (sighting, error) {
	if s, ok := b.memory.seen.get(h.Name); ok && s.Holder == h.Owner {
		return s, nil
	}
	return b.read(ctx, h.Name)
}

// look reads the record of name for an attempt of owner. A second one waits for its turn among the waiters of this client.
func (b *Backend) look(ctx context.Context, name, owner string) (sighting, error) {
	p, paced := b.store.(interface{ turn(context.Context) error }) // it has a Pace
	if _, again := b.memory.waiters.get(owner); paced && again {
		if err := p.turn(ctx); err != nil {
			return sighting{}, err
		}
	}
	return b.read(ctx, name)
}

// read reads the record of name.
func (b *Backend) read(ctx context.Context, name string) (sighting, error) {
	r, err := b.store.Read(ctx, name)
	if err != nil {
		return sighting{}, unsent(err)
	}
	return b.memory.saw(name, r, b.now()), nil // the time after the answer: the version may be as young as that
}

// change replaces the record of name, seen as s, by what next makes of it, as often as others were faster. It returns what
// it wrote, or what it found with the error of next and errMoved, or what a write without an answer would replace.
func (b *Backend) change(ctx context.Context, name string, s sighting, next func(sighting) (Record, error)) (sighting, error) {
	for range rounds {
		r, err := next(s)
		if err != nil {
			return s, err
		}
		if s, err = b.replace(ctx, name, s, r); !errors.Is(err, errMoved) {
			return s, err
		}
	}
	return s, errMoved
}

// replace writes next over old, and returns what it wrote. errMoved comes with what is there instead. After any error but
// that, a driver's and driver.ErrUnsent the write may still take effect.
func (b *Backend) replace(ctx context.Context, name string, old sighting, next Record) (sighting, error) {
	next.Version, next.Token, next.Age = old.Version, b.tokens.New(), 0
	before := b.now()
	w, err := b.store.Write(ctx, name, next)
	switch {
	case err == nil:
		next.Version, next.Stamp, next.Rest = w.Version, w.Stamp, w.Rest
		return b.memory.saw(name, next, before), nil
	case driver.Final(err), errors.Is(err, driver.ErrUnsent):
		return old, err
	}
	now, unread := b.read(ctx, name)
	switch {
	case errors.Is(unread, ErrRefused):
		return old, unsent(err)
	case unread != nil:
		return old, fmt.Errorf("%w; to read what became of it failed: %v", err, unread) // which is no fact about the write
	case now.Token == next.Token:
		return now, nil
	case now.Version != old.Version && errors.Is(err, ErrConflict):
		return now, errMoved
	case now.Version != old.Version:
		now.doubt = err
		return now, errMoved
	}
	return old, unsent(err)
}

// unsent returns an error of a call that has written nothing: one that was refused took nothing.
func unsent(err error) error {
	if errors.Is(err, ErrRefused) {
		return driver.Unsent(err)
	}
	return err
}

// wrap names the call and the lock.
func wrap(call, name string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s %s: %w", call, driver.Quote(name), err)
}
