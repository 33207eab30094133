package members

import (
	"context"
	"errors"
	"net/url"
	"testing"

	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/driver"
)

// sessionBackend is a backend whose watch takes the lock, as its capabilities say.
type sessionBackend struct{ *memlock.Backend }

func (b sessionBackend) Caps() driver.Caps {
	c := b.Backend.Caps()
	c.Session = true
	return c
}

func init() {
	driver.Register("session", func(context.Context, *url.URL) (driver.Backend, error) {
		return sessionBackend{memlock.New()}, nil
	})
}

// The watch of a member that is opened later, and might take the lock, is used only where that is expected.
func TestWatchOfALateMember(t *testing.T) {
	suffices := func(driver.Caps, driver.Caps) bool { return true }
	r := driver.Request{Hold: driver.Hold{Name: "x", Owner: driver.NewOwner(), TTL: driver.MaxTTL, Mode: driver.Exclusive}}
	for _, expected := range []bool{false, true} {
		m := newLazy("session:", driver.Caps{Session: expected}, suffices, nil)
		m.next = m.next.Add(-retryPause)
		w, err := m.Watch(t.Context(), r)
		if errors.Is(err, driver.ErrSkip) == expected || err != nil && !errors.Is(err, driver.ErrSkip) {
			t.Errorf("expected to take the lock: %v; error %v", expected, err)
		}
		if err == nil {
			w.Close()
		}
		m.Close()
	}
}
