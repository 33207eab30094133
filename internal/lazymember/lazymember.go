// Package lazymember stands in for a member of a combinator that could not be opened with
// the others.
package lazymember

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/distlock/distlock/driver"
)

// Members are tried again after tryAgain, each time for at most openTimeout.
const (
	tryAgain    = 250 * time.Millisecond
	openTimeout = 5 * time.Second
)

// Member is a backend that could not be opened with the others. Calls to it try again
// in the background, and have no answer until that succeeds. It is safe for concurrent use.
type Member struct {
	url  string
	caps driver.Caps
	fits func(driver.Caps) error

	life context.Context
	end  context.CancelFunc

	mu      sync.Mutex
	backend driver.Backend // nil until it has come
	opening chan struct{}  // closed when the try under way is over; nil if none is
	err     error          // of the last try
	next    time.Time      // no try before
	closed  bool
}

var (
	_ driver.Backend   = (*Member)(nil)
	_ driver.Watcher   = (*Member)(nil)
	_ driver.Inspector = (*Member)(nil)
	_ driver.Revoker   = (*Member)(nil)
)

// New stands in for the member at url, whose opening failed with err. It says that it can
// do what caps say; when it comes, fits says whether what it can do will do.
func New(url string, caps driver.Caps, fits func(driver.Caps) error, err error) *Member {
	m := &Member{url: url, caps: caps, fits: fits, err: err, next: time.Now().Add(tryAgain)}
	m.life, m.end = context.WithCancel(context.Background())
	return m
}

// get is the member, if it comes before ctx ends.
func (m *Member) get(ctx context.Context) (driver.Backend, error) {
	m.mu.Lock()
	if m.backend == nil && m.opening == nil && !m.closed && !time.Now().Before(m.next) {
		m.opening = make(chan struct{})
		go m.open(m.opening)
	}
	opening := m.opening
	m.mu.Unlock()
	if opening != nil {
		select {
		case <-opening:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.closed:
		return nil, fmt.Errorf("latecomer: %w", driver.ErrClosed)
	case m.backend == nil:
		// Whatever the try said, it is no fact about a lock.
		return nil, fmt.Errorf("the member has not come yet: %v", m.err)
	}
	return m.backend, nil
}

func (m *Member) open(done chan struct{}) {
	defer close(done)
	ctx, cancel := context.WithTimeout(m.life, openTimeout)
	defer cancel()
	b, err := driver.Open(ctx, m.url)
	if err == nil {
		if err = m.fits(b.Caps()); err != nil {
			b.Close()
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.opening, m.err, m.next = nil, err, time.Now().Add(tryAgain)
	switch {
	case err != nil:
	case m.closed:
		b.Close()
	default:
		m.backend = b
	}
}

// Caps is what was assumed of the member.
func (m *Member) Caps() driver.Caps { return m.caps }

// Acquire makes one attempt, if the member has come.
func (m *Member) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	b, err := m.get(ctx)
	if err != nil {
		return driver.Grant{}, driver.Unsent(err)
	}
	return b.Acquire(ctx, r)
}

// Renew renews, if the member has come.
func (m *Member) Renew(ctx context.Context, holds []driver.Hold) []error {
	b, err := m.get(ctx)
	if err == nil {
		return b.Renew(ctx, holds)
	}
	errs := make([]error, len(holds))
	for i := range errs {
		errs[i] = err
	}
	return errs
}

// Release releases, if the member has come.
func (m *Member) Release(ctx context.Context, h driver.Hold) error {
	b, err := m.get(ctx)
	if err != nil {
		return err
	}
	return b.Release(ctx, h)
}

// Watch is the member's, if it has come and has one.
func (m *Member) Watch(ctx context.Context, r driver.Request) (driver.Watch, error) {
	b, err := m.get(ctx)
	if err != nil {
		return driver.Watch{}, err
	}
	if w, ok := b.(driver.Watcher); ok {
		return w.Watch(ctx, r)
	}
	return driver.Watch{}, driver.ErrSkip
}

// Inspect is the member's, if it has come and has one.
func (m *Member) Inspect(ctx context.Context, name string) (driver.Info, error) {
	b, err := m.get(ctx)
	if err != nil {
		return driver.Info{}, err
	}
	if i, ok := b.(driver.Inspector); ok {
		return i.Inspect(ctx, name)
	}
	return driver.Info{}, driver.ErrSkip
}

// List is the member's, if it has come and has one.
func (m *Member) List(ctx context.Context, prefix string, yield func(string) bool) error {
	b, err := m.get(ctx)
	if err != nil {
		return err
	}
	if i, ok := b.(driver.Inspector); ok {
		return i.List(ctx, prefix, yield)
	}
	return driver.ErrSkip
}

// Revoke is the member's, if it has come and has one.
func (m *Member) Revoke(ctx context.Context, h driver.Hold) error {
	b, err := m.get(ctx)
	if err != nil {
		return err
	}
	if r, ok := b.(driver.Revoker); ok {
		return r.Revoke(ctx, h)
	}
	return fmt.Errorf("%w: asking a holder", driver.ErrUnsupported)
}

// Close ends a try under way, too.
func (m *Member) Close() error {
	m.mu.Lock()
	m.closed = true
	opening, b := m.opening, m.backend
	m.mu.Unlock()
	m.end()
	if opening != nil {
		<-opening
	}
	if b != nil {
		return b.Close()
	}
	return nil
}
