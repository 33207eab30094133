package httplock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"unicode/utf8"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/httpwire"
	"github.com/distlock/distlock/internal/wait"
)

// Backend keeps locks on a distlock server. It is safe for concurrent use.
type Backend struct {
	client *client
	caps   driver.Caps
	news   *news
	caller *caller
	late   lateAttempts
	meta   httpwire.MetaWriter

	life  context.Context // ends with Close
	stop  context.CancelCauseFunc
	tasks wait.Group

	mu     sync.Mutex
	closed bool
}

var (
	_ driver.Backend   = (*Backend)(nil)
	_ driver.Watcher   = (*Backend)(nil)
	_ driver.Inspector = (*Backend)(nil)
	_ driver.Revoker   = (*Backend)(nil)
)

// newBackend makes a Backend of a client that has seen its server.
func newBackend(c *client, life context.Context, stop context.CancelCauseFunc) *Backend {
	b := &Backend{client: c, caps: c.caps, late: lateAttempts{at: map[string]arrivals{}}, life: life, stop: stop}
	b.news = newNews(c, life, b.goTask)
	b.caller = &caller{client: c, life: life, begin: b.goTask}
	if c.caps.Revocable != 0 {
		b.caller.secret = b.news.secret
	}
	return b
}

// Caps returns the Caps of the server's backend, with its name.
func (b *Backend) Caps() driver.Caps { return b.caps }

// Close ends the streams and the calls under way. Holds end with their TTL.
func (b *Backend) Close() error {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	b.stop(errClosing)
	b.tasks.Wait()
	b.client.transport.CloseIdleConnections()
	return nil
}

func (b *Backend) isClosed() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.closed
}

// goTask runs f in the background, unless the backend is closed.
func (b *Backend) goTask(f func()) (started bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.closed {
		b.tasks.Go(f)
	}
	return !b.closed
}

// worked notes the outcome of a call for a hold: one that was let in shows that the client has rights.
func (b *Backend) worked(err error) {
	if (err == nil || errors.Is(err, driver.ErrHeld) || errors.Is(err, driver.ErrLost)) && !b.client.works.Load() {
		b.client.works.Store(true)
	}
}

// during returns a context that ends with ctx or with the backend. The caller calls end.
func (b *Backend) during(ctx context.Context) (_ context.Context, end func()) {
	return during(ctx, b.life)
}

// checkName returns an error for a name that no server takes, and for calls after Close. A name that JSON
// can't contain would become another one.
func (b *Backend) checkName(name string) error {
	switch {
	case b.isClosed():
		return driver.ErrClosed
	case name == "":
		return fmt.Errorf("%w: a lock without a name", driver.ErrInvalid)
	case len(name) > httpwire.MaxName:
		return fmt.Errorf("%w: the name %s is too long: a server takes %d bytes",
			driver.ErrInvalid, driver.Quote(name), httpwire.MaxName)
	case !utf8.ValidString(name):
		return fmt.Errorf("%w: the name %s is not UTF-8", driver.ErrInvalid, driver.Quote(name))
	}
	return nil
}

// checkHold returns an error for a hold that can't exist.
func (b *Backend) checkHold(h driver.Hold) error {
	if err := b.checkName(h.Name); err != nil {
		return err
	}
	switch {
	case !b.caps.Modes.Has(h.Mode):
		return fmt.Errorf("%w: mode %v", driver.ErrUnsupported, h.Mode)
	case h.Owner == "":
		return fmt.Errorf("%w: the owner of %s is not known: a server shows it to clients with the right to break the lock",
			driver.ErrInvalid, driver.Quote(h.Name))
	}
	return nil
}

// fail wraps the error of a call. A HeldError stays as it is.
func fail(what, name string, err error) error {
	if held := (*driver.HeldError)(nil); errors.As(err, &held) {
		if errors.Is(err, driver.ErrSpent) {
			return driver.Spent(held)
		}
		return held
	}
	return fmt.Errorf("httplock: %s %s %w", what, driver.Quote(name), err)
}
