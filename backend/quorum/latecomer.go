package quorum

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/distlock/distlock/driver"
)

// latecomer is a member that could not be opened with the others. Calls to it try again
// in the background, and have no answer until that succeeds.
type latecomer struct {
	url  string
	caps driver.Caps // what all others can do: it must be able to as well

	life context.Context
	end  context.CancelFunc

	mu      sync.Mutex
	backend driver.Backend // nil until it has come
	opening chan struct{}  // closed when the try under way is over; nil if none is
	err     error          // of the last try
	next    time.Time      // no try before
	closed  bool
}

func newLatecomer(url string, others []driver.Caps, err error) *latecomer {
	l := &latecomer{url: url, caps: others[0], err: err, next: time.Now().Add(tryAgain)}
	for _, c := range others {
		l.caps = l.caps.Intersect(c)
	}
	l.life, l.end = context.WithCancel(context.Background())
	return l
}

// get is the member, if it comes before ctx ends.
func (l *latecomer) get(ctx context.Context) (driver.Backend, error) {
	l.mu.Lock()
	if l.backend == nil && l.opening == nil && !l.closed && !time.Now().Before(l.next) {
		l.opening = make(chan struct{})
		go l.open(l.opening)
	}
	opening := l.opening
	l.mu.Unlock()
	if opening != nil {
		select {
		case <-opening:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.closed:
		return nil, fmt.Errorf("quorum: %w", driver.ErrClosed)
	case l.backend == nil:
		// Whatever the try said, it is no fact about a lock.
		return nil, fmt.Errorf("quorum: the member has not come yet: %v", l.err)
	}
	return l.backend, nil
}

func (l *latecomer) open(done chan struct{}) {
	defer close(done)
	ctx, cancel := context.WithTimeout(l.life, openTimeout)
	defer cancel()
	b, err := driver.Open(ctx, l.url)
	if err == nil {
		if err = l.lacks(b.Caps()); err != nil {
			b.Close()
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.opening, l.err, l.next = nil, err, time.Now().Add(tryAgain)
	switch {
	case err != nil:
	case l.closed:
		b.Close()
	default:
		l.backend = b
	}
}

// lacks says what the member can't do that the quorum has promised.
func (l *latecomer) lacks(c driver.Caps) error {
	if both := c.Intersect(l.caps); both.Modes != l.caps.Modes || both.Floor != l.caps.Floor || both.Fence != l.caps.Fence ||
		both.Downgrade != l.caps.Downgrade || both.MinTTL != l.caps.MinTTL || both.MaxTTL != l.caps.MaxTTL {
		return fmt.Errorf("%w: it can do less than the other members: %+v, want %+v", driver.ErrUnsupported, c, l.caps)
	}
	return nil
}

func (l *latecomer) Caps() driver.Caps { return l.caps }

func (l *latecomer) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	b, err := l.get(ctx)
	if err != nil {
		return driver.Grant{}, err
	}
	return b.Acquire(ctx, r)
}

func (l *latecomer) Renew(ctx context.Context, holds []driver.Hold) []error {
	b, err := l.get(ctx)
	if err == nil {
		return b.Renew(ctx, holds)
	}
	errs := make([]error, len(holds))
	for i := range errs {
		errs[i] = err
	}
	return errs
}

func (l *latecomer) Release(ctx context.Context, h driver.Hold) error {
	b, err := l.get(ctx)
	if err != nil {
		return err
	}
	return b.Release(ctx, h)
}

func (l *latecomer) Watch(ctx context.Context, r driver.Request) (driver.Watch, error) {
	b, err := l.get(ctx)
	if err != nil {
		return driver.Watch{}, err
	}
	if w, ok := b.(driver.Waiter); ok {
		return w.Watch(ctx, r)
	}
	return driver.Watch{}, driver.ErrSkip
}

func (l *latecomer) Inspect(ctx context.Context, name string) (driver.Info, error) {
	b, err := l.get(ctx)
	if err != nil {
		return driver.Info{}, err
	}
	if i, ok := b.(driver.Inspector); ok {
		return i.Inspect(ctx, name)
	}
	return driver.Info{}, driver.ErrSkip
}

func (l *latecomer) List(ctx context.Context, prefix string, yield func(string) bool) error {
	b, err := l.get(ctx)
	if err != nil {
		return err
	}
	if i, ok := b.(driver.Inspector); ok {
		return i.List(ctx, prefix, yield)
	}
	return driver.ErrSkip
}

// Close ends a try under way, too.
func (l *latecomer) Close() error {
	l.mu.Lock()
	l.closed = true
	opening, b := l.opening, l.backend
	l.mu.Unlock()
	l.end()
	if opening != nil {
		<-opening
	}
	if b != nil {
		return b.Close()
	}
	return nil
}
