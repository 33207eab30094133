// Package lazymember replaces a member of a combinator that could not be opened with the others.
package lazymember

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/distlock/distlock/driver"
)

const (
	retryPause  = 250 * time.Millisecond
	openTimeout = 5 * time.Second
)

// Member is a backend that is opened later. Each call retries the opening if retryPause has
// passed, and fails until it succeeds. It is safe for concurrent use.
type Member struct {
	url  string
	caps driver.Caps
	fits func(driver.Caps) error

	life context.Context
	end  context.CancelFunc

	mu      sync.Mutex
	backend driver.Backend // nil until it is opened
	opening chan struct{}  // closed when the running try ends; nil if none is running
	err     error          // of the last try
	next    time.Time      // of the next try, at the earliest
	closed  bool
}

var (
	_ driver.Backend   = (*Member)(nil)
	_ driver.Watcher   = (*Member)(nil)
	_ driver.Inspector = (*Member)(nil)
	_ driver.Revoker   = (*Member)(nil)
)

// New returns a Member for url, whose opening failed with err. Until it is opened it claims caps.
// An opened backend is used if fits accepts its Caps.
func New(url string, caps driver.Caps, fits func(driver.Caps) error, err error) *Member {
	m := &Member{url: url, caps: caps, fits: fits, err: err, next: time.Now().Add(retryPause)}
	m.life, m.end = context.WithCancel(context.Background())
	return m
}

// await returns the backend if it can be opened before ctx ends.
func (m *Member) await(ctx context.Context) (driver.Backend, error) {
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
		return nil, fmt.Errorf("lazymember: %w", driver.ErrClosed)
	case m.backend == nil:
		// %v: the error of the opening is no fact about a lock.
		return nil, fmt.Errorf("the member is not open yet: %v", m.err)
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
	m.opening, m.err, m.next = nil, err, time.Now().Add(retryPause)
	switch {
	case err != nil:
	case m.closed:
		b.Close()
	default:
		m.backend = b
	}
}

// Caps returns the capabilities that were assumed of the member.
func (m *Member) Caps() driver.Caps { return m.caps }

// Acquire makes one attempt. It is unsent if the member is not open.
func (m *Member) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	b, err := m.await(ctx)
	if err != nil {
		return driver.Grant{}, driver.Unsent(err)
	}
	return b.Acquire(ctx, r)
}

// Renew renews holds if the member is open.
func (m *Member) Renew(ctx context.Context, holds []driver.Hold) []error {
	b, err := m.await(ctx)
	if err == nil {
		return b.Renew(ctx, holds)
	}
	errs := make([]error, len(holds))
	for i := range errs {
		errs[i] = err
	}
	return errs
}

// Release ends a hold if the member is open.
func (m *Member) Release(ctx context.Context, h driver.Hold) error {
	b, err := m.await(ctx)
	if err != nil {
		return err
	}
	return b.Release(ctx, h)
}

// Watch returns the member's watch if it is open.
func (m *Member) Watch(ctx context.Context, r driver.Request) (driver.Watch, error) {
	b, err := m.await(ctx)
	if err != nil {
		return driver.Watch{}, err
	}
	if w, ok := b.(driver.Watcher); ok {
		return w.Watch(ctx, r)
	}
	return driver.Watch{}, driver.ErrSkip
}

// Inspect describes a lock if the member is open.
func (m *Member) Inspect(ctx context.Context, name string) (driver.Info, error) {
	b, err := m.await(ctx)
	if err != nil {
		return driver.Info{}, err
	}
	if i, ok := b.(driver.Inspector); ok {
		return i.Inspect(ctx, name)
	}
	return driver.Info{}, driver.ErrSkip
}

// List lists the member's locks if it is open.
func (m *Member) List(ctx context.Context, prefix string, yield func(string) bool) error {
	b, err := m.await(ctx)
	if err != nil {
		return err
	}
	if i, ok := b.(driver.Inspector); ok {
		return i.List(ctx, prefix, yield)
	}
	return driver.ErrSkip
}

// Revoke revokes a hold if the member is open.
func (m *Member) Revoke(ctx context.Context, h driver.Hold) error {
	b, err := m.await(ctx)
	if err != nil {
		return err
	}
	if r, ok := b.(driver.Revoker); ok {
		return r.Revoke(ctx, h)
	}
	return fmt.Errorf("%w: revocation", driver.ErrUnsupported)
}

// Close closes the member, and ends a running try.
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
