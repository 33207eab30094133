package redislock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/distlock/distlock/backend/redislock/internal/layouts"
	"github.com/distlock/distlock/backend/redislock/internal/redisconn"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/netaddr"
	"github.com/distlock/distlock/internal/wait"
)

// Backend keeps locks in Redis. It is safe for concurrent use.
type Backend struct {
	client        *redisconn.Client
	pubsub        *redisconn.PubSub
	layout        *layouts.Layout
	replicas      replicas // whose acknowledgement a lock needs
	storage       storage
	abandoned     abandonedAcquires
	caps          driver.Caps
	certificates  *netaddr.Certificates // of a URL; nil: none, or the caller's client has its own
	subscriptions *redisconn.Subscriptions
	releases      *releaseNotifier
	works         atomic.Bool // an attempt was answered, or Open has tried the server
	closed        atomic.Bool
	once          sync.Once
}

var (
	_ driver.Backend   = (*Backend)(nil)
	_ driver.Watcher   = (*Backend)(nil)
	_ driver.Inspector = (*Backend)(nil)
)

// Caps says what the backend can do.
func (b *Backend) Caps() driver.Caps { return b.caps }

// Close closes the backend's subscriptions, and the client if Open made it. A client of the caller
// stays open.
func (b *Backend) Close() error {
	b.closed.Store(true)
	b.once.Do(func() {
		b.subscriptions.Cancel()
		b.abandoned.close()
		b.client.Close()
		b.subscriptions.Close()
	})
	return nil
}

var errNoScripts = fmt.Errorf("%w: the server's user may not run scripts, which all but exclusive locks need", driver.ErrUnsupported)

// check returns an error if a hold can't be kept.
func (b *Backend) check(h driver.Hold) error {
	switch {
	case b.closed.Load():
		return driver.ErrClosed
	case b.caps.Modes.Has(h.Mode):
		return b.layout.CheckName(h.Name)
	case driver.AllModes.Has(h.Mode):
		return fmt.Errorf("mode %v: %w", h.Mode, errNoScripts)
	}
	return fmt.Errorf("%w: mode %v", driver.ErrUnsupported, h.Mode)
}

// fail says which call failed, and whether the backend was closed meanwhile. That is no fact
// about the lock, so the outcome stays unknown.
func (b *Backend) fail(op, name string, err error) error {
	if errors.Is(err, driver.ErrLost) {
		return driver.ErrLost
	}
	if b.closed.Load() && !driver.Final(err) {
		return fmt.Errorf("redislock: %s %s: closed meanwhile: %w", op, driver.Quote(name), err)
	}
	return fmt.Errorf("redislock: %s %s: %w%s", op, driver.Quote(name), err, b.hint(err))
}

// hint says, behind an error that no server has answered, that our certificate has ended, or can't be read.
func (b *Backend) hint(err error) string {
	if _, answered := redisconn.AsReply(err); answered || driver.Final(err) {
		return ""
	}
	return b.certificates.Hint(nil)
}

func (b *Backend) markWorks() {
	if !b.works.Load() { // all goroutines would write the same word otherwise
		b.works.Store(true)
	}
}

// Identity returns what the server that takes the locks calls itself, which is another name after it was restarted. It is
// the same for all its addresses, databases and prefixes. It is driver.ErrSkip if it can't be known: of a cluster, or
// of a server whose user may not ask (INFO).
func (b *Backend) Identity(ctx context.Context) (string, error) {
	if b.closed.Load() {
		return "", driver.ErrClosed
	}
	if b.client.Slotted() {
		return "", driver.ErrSkip
	}
	reply, err := b.client.Do(ctx, "", []string{"INFO", "server"})
	if re, is := redisconn.AsReply(err); is && (re.HasCode("NOPERM") || re.UnknownCommand()) {
		return "", driver.ErrSkip
	}
	if err != nil {
		return "", fmt.Errorf("redislock: asking the server who it is: %w", redisconn.Explain(err))
	}
	_, id, _ := strings.Cut(redisconn.Text(reply), "\nrun_id:")
	if id, _, _ = strings.Cut(id, "\r"); id == "" {
		return "", driver.ErrSkip
	}
	return id, nil
}

// Acquire makes one attempt, in one round trip.
func (b *Backend) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	err := b.check(r.Hold)
	if err == nil {
		err = r.Validate(b.caps)
	}
	if err != nil {
		return driver.Grant{}, err
	}
	g, err := b.storage.Acquire(ctx, r)
	if err != nil && !errors.Is(err, driver.ErrHeld) {
		return driver.Grant{}, b.acquireFailed(ctx, r, g, err)
	}
	b.markWorks()
	b.releases.retried(r.Owner)
	return g, err
}

// acquireFailed returns the error of an attempt that is neither granted nor refused. What it took nevertheless is given back.
func (b *Backend) acquireFailed(ctx context.Context, r driver.Request, taken driver.Grant, err error) error {
	if taken.TTL > 0 {
		// If the release fails, the core repeats it: then no error may be final, since that would say that nothing was acquired.
		if failed := b.storage.Release(ctx, r.Hold); failed != nil && !errors.Is(failed, driver.ErrLost) {
			err = fmt.Errorf("%v; it is not certain that it was released: %v", err, failed)
		}
		err = driver.Spent(err)
	}
	b.abandoned.add(r.Owner, err)
	// Nobody would see a wrong password of a new client if Lock just waited.
	return b.fail("acquire", r.Name, redisconn.Final(err, b.works.Load()))
}

// Acquire runs the script that acquires.
func (s *scripted) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	keys, args := s.acquiring(r)
	reply, err := s.run(ctx, s.scripts[r.Mode].acquire, keys, args)
	if err != nil {
		return driver.Grant{}, faultOf(s.layout.Prefix+r.Name, redisconn.MarkUnsent(err))
	}
	return s.outcome(r, reply)
}

func (s *scripted) acquiring(r driver.Request) (keys, args []string) {
	m, key := s.layout.Mode(r.Mode), s.layout.Prefix+r.Name
	return append(m.Keys(nil, key, r.Owner), s.layout.Counter(r.Name)), m.AcquireArgs(nil, key, s.notes.Start(r.Owner, r.Meta), r)
}

// outcome reads an acquire's reply.
func (s *scripted) outcome(r driver.Request, reply any) (driver.Grant, error) {
	if id, granted := reply.(string); granted {
		return s.layout.Grant(r, id)
	}
	list, _ := reply.([]any)
	if len(list) == 1 {
		list = append(list, nil, int64(0))
	}
	if len(list) != 3 {
		return driver.Grant{}, redisconn.ErrUnexpected
	}
	left, isNumber := list[0].(int64)
	value, ok := list[1].(string)
	held := layouts.Held(left)
	held.Signaled = list[2] == int64(1)
	if !isNumber || !ok && list[1] != nil || !held.Signaled && list[2] != int64(0) {
		return driver.Grant{}, redisconn.ErrUnexpected
	}
	if _, _, shared := layouts.Shared(value); !shared && ok {
		h := s.layout.StringHolder(value, 0, left)
		held.Holders, held.Signaled = []driver.Holder{h}, held.Signaled && !h.Foreign // others publish nothing
	}
	return driver.Grant{}, held
}

// Release ends a hold, in one round trip. An abandoned attempt of its Owner, which may be on its way through another connection, does
// not delay it: what was held is released at once, and once more when that attempt is over.
func (b *Backend) Release(ctx context.Context, h driver.Hold) error {
	if err := b.check(h); err != nil {
		return err
	}
	late := b.abandoned.of(h.Owner)
	err := b.storage.Release(ctx, h)
	switch {
	case err == nil && late != nil:
		b.abandoned.later(func() { b.releaseAgain(late, h) })
	case errors.Is(err, driver.ErrLost) && late != nil:
		if err = over(ctx, late); err == nil {
			err = b.storage.Release(ctx, h)
		}
	}
	if err != nil {
		return b.fail("release", h.Name, err)
	}
	return nil
}

// releaseAgain releases what late attempts have taken after a release, within their TTL.
func (b *Backend) releaseAgain(late []<-chan struct{}, h driver.Hold) {
	if over(b.abandoned.ctx, late) != nil {
		return
	}
	ctx, cancel := context.WithTimeout(b.abandoned.ctx, max(h.TTL, closeWait))
	defer cancel()
	for ctx.Err() == nil {
		if err := b.storage.Release(ctx, h); err == nil || errors.Is(err, driver.ErrLost) {
			return
		}
		wait.Sleep(ctx, releasePause)
	}
}

// releasePause is between the tries of a release that nobody waits for.
const releasePause = 200 * time.Millisecond

// Release runs the script that releases.
func (s *scripted) Release(ctx context.Context, h driver.Hold) error {
	m, key := s.layout.Mode(h.Mode), s.layout.Prefix+h.Name
	switch reply, err := s.run(ctx, s.scripts[h.Mode].release, m.Keys(nil, key, h.Owner), m.ReleaseArgs([]string{m.Field(h.Owner), m.Channel(key)}, key)); {
	case err != nil:
		return redisconn.MarkUnsent(err)
	case reply == int64(0):
		return driver.ErrLost
	case reply == int64(1):
		return nil
	}
	return redisconn.ErrUnexpected
}

// abandonedAcquires are the attempts whose callers gave up, and that may still be executed: a
// later command may go through another connection. Their Owner is released once more when they are over,
// or else a lock would be left behind. No other calls of an Owner need an order: a late renewal
// or attempt shortens nothing, and a released Owner does not come back.
type abandonedAcquires struct {
	some   atomic.Bool
	ctx    context.Context // of what is called later
	cancel context.CancelFunc
	wg     wait.Group

	mu      sync.Mutex
	closed  bool
	byOwner map[string][]<-chan struct{}
}

// add remembers an attempt, as long as it may be executed, if its error says that it may.
func (a *abandonedAcquires) add(owner string, err error) {
	u := (*redisconn.UnansweredError)(nil)
	if !errors.As(err, &u) {
		return
	}
	a.some.Store(true)
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.byOwner == nil {
		a.byOwner = map[string][]<-chan struct{}{}
	}
	a.byOwner[owner] = append(a.byOwner[owner], u.Done)
	go func() {
		<-u.Done
		a.mu.Lock()
		defer a.mu.Unlock()
		rest := slices.DeleteFunc(slices.Clone(a.byOwner[owner]), func(done <-chan struct{}) bool { return done == u.Done })
		if a.byOwner[owner] = rest; len(rest) == 0 {
			delete(a.byOwner, owner)
		}
	}()
}

// of returns what is closed when the remembered attempts of an Owner are over; nil: there are none.
func (a *abandonedAcquires) of(owner string) []<-chan struct{} {
	if !a.some.Load() {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.byOwner[owner]
}

// over returns nil once attempts can't be executed any more.
func over(ctx context.Context, attempts []<-chan struct{}) error {
	for _, done := range attempts {
		select {
		case <-done:
		case <-ctx.Done():
			return fmt.Errorf("an earlier attempt may still be executed: %w", ctx.Err())
		}
	}
	return nil
}

// later calls f in another goroutine, unless the backend is closed. f ends with ctx.
func (a *abandonedAcquires) later(f func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.closed {
		a.wg.Go(f)
	}
}

// close waits for what is called later, but no longer than a connection waits for an answer.
func (a *abandonedAcquires) close() {
	a.mu.Lock()
	a.closed = true
	a.mu.Unlock()
	defer time.AfterFunc(closeWait, a.cancel).Stop()
	a.wg.Wait()
}

const closeWait = 5 * time.Second
