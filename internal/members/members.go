// Package members has the parts that backends made of other backends share.
package members

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/wait"
)

// Member is a backend with a name. Its optional calls return ErrSkip if the backend lacks them.
type Member struct {
	driver.Backend
	Name string
}

// Renew renews holds. There is an answer for each, whatever the backend does.
func (m *Member) Renew(ctx context.Context, holds []driver.Hold) []error {
	errs := m.Backend.Renew(ctx, holds)
	if len(errs) != len(holds) {
		errs = slices.Repeat([]error{errors.New("the member gave no answer")}, len(holds))
	}
	return errs
}

// RenewOne renews one hold.
func (m *Member) RenewOne(ctx context.Context, h driver.Hold) error {
	return m.Renew(ctx, []driver.Hold{h})[0]
}

// Identity says which server it is. Of one that does not tell it is ErrSkip.
func (m *Member) Identity(ctx context.Context) (string, error) {
	i, ok := m.Backend.(driver.Identifier)
	if !ok {
		return "", driver.ErrSkip
	}
	id, err := i.Identity(ctx)
	if err == nil && id == "" { // it can't know
		err = driver.ErrSkip
	}
	return id, err
}

func (m *Member) Watch(ctx context.Context, r driver.Request) (driver.Watch, error) {
	if w, ok := m.Backend.(driver.Watcher); ok {
		return w.Watch(ctx, r)
	}
	return driver.Watch{}, driver.ErrSkip
}

func (m *Member) Inspect(ctx context.Context, name string) (driver.Info, error) {
	if i, ok := m.Backend.(driver.Inspector); ok {
		return i.Inspect(ctx, name)
	}
	return driver.Info{Name: name}, driver.ErrSkip
}

func (m *Member) List(ctx context.Context, prefix string, yield func(string) bool) error {
	if i, ok := m.Backend.(driver.Inspector); ok {
		return i.List(ctx, prefix, yield)
	}
	return driver.ErrSkip
}

func (m *Member) Revoke(ctx context.Context, h driver.Hold) error {
	if r, ok := m.Backend.(driver.Revoker); ok {
		return r.Revoke(ctx, h)
	}
	return fmt.Errorf("%w: revocation", driver.ErrUnsupported)
}

// Close closes the backend. The error has the member's name.
func (m *Member) Close() error {
	if err := m.Backend.Close(); err != nil {
		return fmt.Errorf("close %s: %w", m.Name, err)
	}
	return nil
}

// Guarded has the calls of a backend that lets none through before Enter returns the member to call.
type Guarded struct {
	Enter func(context.Context) (*Member, error)
}

// Acquire makes one attempt. It is unsent without a member.
func (g *Guarded) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	m, err := g.Enter(ctx)
	if err != nil {
		return driver.Grant{}, driver.Unsent(err)
	}
	return m.Acquire(ctx, r)
}

func (g *Guarded) Renew(ctx context.Context, holds []driver.Hold) []error {
	m, err := g.Enter(ctx)
	if err != nil {
		return slices.Repeat([]error{err}, len(holds))
	}
	return m.Renew(ctx, holds)
}

func (g *Guarded) Release(ctx context.Context, h driver.Hold) error {
	m, err := g.Enter(ctx)
	if err != nil {
		return err
	}
	return m.Release(ctx, h)
}

func (g *Guarded) Watch(ctx context.Context, r driver.Request) (driver.Watch, error) {
	m, err := g.Enter(ctx)
	if err != nil {
		return driver.Watch{}, err
	}
	return m.Watch(ctx, r)
}

func (g *Guarded) Inspect(ctx context.Context, name string) (driver.Info, error) {
	m, err := g.Enter(ctx)
	if err != nil {
		return driver.Info{Name: name}, err
	}
	return m.Inspect(ctx, name)
}

func (g *Guarded) List(ctx context.Context, prefix string, yield func(string) bool) error {
	m, err := g.Enter(ctx)
	if err != nil {
		return err
	}
	return m.List(ctx, prefix, yield)
}

func (g *Guarded) Revoke(ctx context.Context, h driver.Hold) error {
	m, err := g.Enter(ctx)
	if err != nil {
		return err
	}
	return m.Revoke(ctx, h)
}

func (g *Guarded) Identity(ctx context.Context) (string, error) {
	m, err := g.Enter(ctx)
	if err != nil {
		return "", err
	}
	return m.Identity(ctx)
}

// Open opens all members at once. It needs a majority, and fails if a member can never join, for a
// wrong password say. Lazy members replace those that are down, or take a second longer than a
// majority: they claim what the opened ones have in common, and join if suffices accepts their Caps.
// It also returns the Caps of the opened ones.
func Open(ctx context.Context, names, urls []string, suffices func(c, want driver.Caps) bool) ([]driver.Backend, []driver.Caps, error) {
	all, errs := make([]driver.Backend, len(urls)), make([]error, len(urls))
	majority, opened := len(urls)/2+1, atomic.Int32{}
	opening, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg wait.Group
	for i, u := range urls {
		wg.Go(func() {
			if all[i], errs[i] = driver.Open(opening, u); errs[i] == nil && int(opened.Add(1)) == majority {
				time.AfterFunc(time.Second, cancel)
			}
		})
	}
	wg.Wait()
	var caps []driver.Caps
	never := false
	for i, err := range errs {
		if never = never || driver.Final(err); err == nil {
			caps = append(caps, all[i].Caps())
		}
	}
	if never || len(caps) < majority {
		CloseAll(all)
		return nil, nil, fmt.Errorf("%d of %d members could be opened, need %d and none that can never be: %w",
			len(caps), len(urls), majority, failures(names, errs))
	}
	want := Intersect(caps)
	for i, err := range errs {
		if err != nil {
			want.Name, want.Poll = names[i], 0
			all[i] = newLazy(urls[i], want, suffices, err)
		}
	}
	return all, caps, nil
}

// NameOf returns a member's name from its URL, without credentials: what one that is down calls itself is not known.
func NameOf(u *url.URL) string {
	return (&url.URL{Scheme: u.Scheme, Opaque: u.Opaque, Host: u.Host, Path: u.Path}).String()
}

// Intersect returns what all can do.
func Intersect(all []driver.Caps) driver.Caps {
	c := all[0]
	for _, o := range all {
		c = c.Intersect(o)
	}
	return c
}

// failures returns the members' errors. Members with the same error share one.
func failures(names []string, errs []error) error {
	of := map[string][]string{}
	for i, err := range errs {
		if err != nil {
			of[err.Error()] = append(of[err.Error()], names[i])
		}
	}
	var failed []error
	for _, err := range errs {
		if err != nil && of[err.Error()] != nil {
			failed = append(failed, fmt.Errorf("%s: %w", strings.Join(of[err.Error()], ", "), err))
			delete(of, err.Error())
		}
	}
	return errors.Join(failed...)
}

// CloseAll closes backends at once. It skips those that are nil.
func CloseAll[B driver.Backend](all []B) error {
	errs := make([]error, len(all))
	var wg wait.Group
	for i, b := range all {
		if any(b) != nil {
			wg.Go(func() { errs[i] = b.Close() })
		}
	}
	wg.Wait()
	return errors.Join(errs...)
}

// Calls are the calls and the background tasks of a backend that can be closed.
type Calls struct {
	Life context.Context // ends when Close begins

	of    string // package, for errors
	end   context.CancelFunc
	mu    sync.Mutex
	tasks wait.Group // guarded by mu while it may be 0
}

// NewCalls returns the calls of an open backend of a package.
func NewCalls(of string) *Calls {
	c := &Calls{of: of}
	c.Life, c.end = context.WithCancel(context.Background())
	return c
}

// Begin starts a call unless the backend is closed or ctx has ended. End ends it.
func (c *Calls) Begin(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.Life.Err() != nil {
		return fmt.Errorf("%s: %w", c.of, driver.ErrClosed)
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%s: %w", c.of, err)
	}
	c.tasks.Add(1)
	return nil
}

// End ends a call.
func (c *Calls) End() { c.tasks.Done() }

// Go runs a task in the background. A call or another task is running.
func (c *Calls) Go(f func()) { c.tasks.Go(f) }

// Close refuses further calls and ends Life.
func (c *Calls) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.end()
}

// Wait waits up to d for running calls and tasks.
func (c *Calls) Wait(d time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	go func() {
		c.tasks.Wait()
		cancel()
	}()
	<-ctx.Done()
}

const (
	retryPause  = 250 * time.Millisecond
	openTimeout = 5 * time.Second
)

// lazy is a backend that is opened later. Each call retries the opening if retryPause has
// passed, and fails until it succeeds. It is safe for concurrent use.
type lazy struct {
	Guarded
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
	l := &lazy{url: url, caps: caps, suffices: suffices, err: err, next: time.Now().Add(retryPause)}
	l.Enter = l.await
	l.life, l.end = context.WithCancel(context.Background())
	return l
}

// await returns the backend if it can be opened before ctx ends.
func (l *lazy) await(ctx context.Context) (*Member, error) {
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
		return nil, driver.ErrClosed
	case l.backend == nil:
		// %v: the error of the opening is no fact about a lock.
		return nil, fmt.Errorf("the member is not open yet: %v", l.err)
	}
	return l.backend, nil
}

func (l *lazy) open(done chan struct{}) {
	defer close(done)
	ctx, cancel := context.WithTimeout(l.life, openTimeout)
	defer cancel()
	b, err := driver.Open(ctx, l.url)
	if err == nil && !l.suffices(b.Caps(), l.caps) {
		err = fmt.Errorf("%w: it can do less than the other members: %+v, want %+v", driver.ErrUnsupported, b.Caps(), l.caps)
		b.Close()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.opening, l.err, l.next = nil, err, time.Now().Add(retryPause)
	switch {
	case err != nil:
	case l.closed:
		b.Close()
	default:
		l.backend = &Member{Backend: b}
	}
}

// Caps returns the capabilities that were assumed of the member.
func (l *lazy) Caps() driver.Caps { return l.caps }

// Watch watches if the member's watch takes no lock, or the assumed capabilities say so.
func (l *lazy) Watch(ctx context.Context, r driver.Request) (driver.Watch, error) {
	if b, err := l.await(ctx); err == nil && WatchTakes(b.Caps()) && !WatchTakes(l.caps) {
		return driver.Watch{}, driver.ErrSkip
	}
	return l.Guarded.Watch(ctx, r)
}

// WatchTakes reports whether the watch of a backend with these capabilities may take the lock.
func WatchTakes(c driver.Caps) bool { return c.Queueing == driver.QueueAlways || c.Session }

// Close closes the member, and ends a running try.
func (l *lazy) Close() error {
	l.mu.Lock()
	l.closed = true
	opening, b := l.opening, l.backend
	l.mu.Unlock()
	l.end()
	if opening != nil {
		<-opening
	}
	if b != nil {
		return b.Backend.Close()
	}
	return nil
}
