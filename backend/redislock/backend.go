package redislock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/distlock/distlock/backend/redislock/internal/layouts"
	"github.com/distlock/distlock/backend/redislock/internal/redisconn"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/netaddr"
)

// Backend keeps locks in Redis. It is safe for concurrent use.
type Backend struct {
	client        redisconn.Client
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
