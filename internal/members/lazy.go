package members

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/distlock/distlock/driver"
)

const (
	retryPause  = 250 * time.Millisecond
	openTimeout = 5 * time.Second
)

// lazy is a backend that is opened later. Each call retries the opening if retryPause has
// passed, and fails until it succeeds. It is safe for concurrent use.
type lazy struct {
	url      string
	caps     driver.Caps
	suffices func(c, want driver.Caps) bool

	life context.Context
	end  context.CancelFunc

	mu      sync.Mutex
	backend *Member       // nil until it is opened
	opening chan struct{} // closed when the running try ends; nil if none is running
	err     error         // of the last try
	next    time.Time     // of the next try, at the earliest
	closed  bool
}

// newLazy returns a lazy member for url, whose opening failed with err. Until it is opened it claims caps.
func newLazy(url string, caps driver.Caps, suffices func(c, want driver.Caps) bool, err error) *lazy {
	m := &lazy{url: url, caps: caps, suffices: suffices, err: err, next: time.Now().Add(retryPause)}
	m.life, m.end = context.WithCancel(context.Background())
	return m
}

// await returns the backend if it can be opened before ctx ends.
func (m *lazy) await(ctx context.Context) (*Member, error) {
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
		return nil, driver.ErrClosed
	case m.backend == nil:
		// %v: the error of the opening is no fact about a lock.
		return nil, fmt.Errorf("the member is not open yet: %v", m.err)
	}
	return m.backend, nil
}

func (m *lazy) open(done chan struct{}) {
	defer close(done)
	ctx, cancel := context.WithTimeout(m.life, openTimeout)
	defer cancel()
	b, err := driver.Open(ctx, m.url)
	if err == nil && !m.suffices(b.Caps(), m.caps) {
		err = fmt.Errorf("%w: it can do less than the other members: %+v, want %+v", driver.ErrUnsupported, b.Caps(), m.caps)
		b.Close()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.opening, m.err, m.next = nil, err, time.Now().Add(retryPause)
	switch {
	case err != nil:
	case m.closed:
		b.Close()
	default:
		m.backend = &Member{Backend: b}
	}
}

// Caps returns the capabilities that were assumed of the member.
func (m *lazy) Caps() driver.Caps { return m.caps }

// Acquire makes one attempt. It is unsent if the member is not open.
func (m *lazy) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	b, err := m.await(ctx)
	if err != nil {
		return driver.Grant{}, driver.Unsent(err)
	}
	return b.Acquire(ctx, r)
}

// Renew renews holds if the member is open.
func (m *lazy) Renew(ctx context.Context, holds []driver.Hold) []error {
	b, err := m.await(ctx)
	if err != nil {
		return slices.Repeat([]error{err}, len(holds))
	}
	return b.Renew(ctx, holds)
}

// Release ends a hold if the member is open.
func (m *lazy) Release(ctx context.Context, h driver.Hold) error {
	b, err := m.await(ctx)
	if err != nil {
		return err
	}
	return b.Release(ctx, h)
}

func (m *lazy) Watch(ctx context.Context, r driver.Request) (driver.Watch, error) {
	b, err := m.await(ctx)
	if err != nil {
		return driver.Watch{}, err
	}
	return b.Watch(ctx, r)
}

func (m *lazy) Inspect(ctx context.Context, name string) (driver.Info, error) {
	b, err := m.await(ctx)
	if err != nil {
		return driver.Info{}, err
	}
	return b.Inspect(ctx, name)
}

func (m *lazy) List(ctx context.Context, prefix string, yield func(string) bool) error {
	b, err := m.await(ctx)
	if err != nil {
		return err
	}
	return b.List(ctx, prefix, yield)
}

func (m *lazy) Revoke(ctx context.Context, h driver.Hold) error {
	b, err := m.await(ctx)
	if err != nil {
		return err
	}
	return b.Revoke(ctx, h)
}

// Close closes the member, and ends a running try.
func (m *lazy) Close() error {
	m.mu.Lock()
	m.closed = true
	opening, b := m.opening, m.backend
	m.mu.Unlock()
	m.end()
	if opening != nil {
		<-opening
	}
	if b != nil {
		return b.Backend.Close()
	}
	return nil
}
