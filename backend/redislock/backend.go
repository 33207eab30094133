package redislock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/distlock/distlock/backend/redislock/internal/redisconn"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/netaddr"
)

// Backend keeps locks in Redis. It is safe for concurrent use.
type Backend struct {
	*store
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
		b.client.Close()
		b.subscriptions.Close()
	})
	return nil
}

var errNoScripts = fmt.Errorf("%w: the server's user may not run scripts, which all but exclusive locks need", driver.ErrUnsupported)

// recipe returns how a hold is written, or why it can't be.
func (b *Backend) recipe(h driver.Hold) (*recipe, error) {
	switch {
	case b.closed.Load():
		return nil, driver.ErrClosed
	case b.caps.Modes.Has(h.Mode):
		return b.layout.recipes[h.Mode], b.checkName(h.Name)
	case driver.AllModes.Has(h.Mode):
		return nil, fmt.Errorf("mode %v: %w", h.Mode, errNoScripts)
	}
	return nil, fmt.Errorf("%w: mode %v", driver.ErrUnsupported, h.Mode)
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
	_, id, _ := strings.Cut(text(reply), "\nrun_id:")
	if id, _, _ = strings.Cut(id, "\r"); id == "" {
		return "", driver.ErrSkip
	}
	return id, nil
}

// checkName refuses names whose keys a cluster has in several slots, and names whose keys may be
// another lock's.
func (s *store) checkName(name string) error {
	key := s.prefix + name
	if s.client.Strict() {
		if err := oneSlot(key); err != nil {
			return err
		}
	}
	if rule := reserved(key); rule != "" {
		return fmt.Errorf("%w: the name %s: keys that %s belong to other locks, which keep their data there", driver.ErrInvalid, driver.Quote(key), rule)
	}
	if inner, ok := braced(key); ok && s.layout.span == 1 {
		return fmt.Errorf("%w: the name %s: in the layout %q it would share keys with %s; use that", driver.ErrInvalid, driver.Quote(key), Redisson, driver.Quote(inner))
	}
	return nil
}

// checkPrefix refuses prefixes that no name may follow.
func (s *store) checkPrefix() error {
	if at := slices.IndexFunc(reservedStarts, func(start string) bool { return strings.HasPrefix(s.prefix, start) }); at >= 0 {
		return fmt.Errorf("%w: %q: keys that begin with %q belong to other locks", driver.ErrInvalid, s.prefix, reservedStarts[at])
	}
	if s.client.Strict() {
		return oneSlot(s.prefix)
	}
	return nil
}

// abandonedAcquires are the attempts whose callers gave up, and that may still be executed: a
// later command may go through another connection. The release of their Owner waits for them,
// or else it would leave a lock behind. No other calls of an Owner need an order: a late renewal
// or attempt shortens nothing, and a released Owner does not come back.
type abandonedAcquires struct {
	some atomic.Bool

	mu      sync.Mutex
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

// wait returns once no remembered attempt of an Owner can be executed any more.
func (a *abandonedAcquires) wait(ctx context.Context, owner string) error {
	if !a.some.Load() {
		return nil
	}
	a.mu.Lock()
	list := a.byOwner[owner]
	a.mu.Unlock()
	for _, done := range list {
		select {
		case <-done:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}
