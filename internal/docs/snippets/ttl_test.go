// Package snippets has code that documents quote and no example has.
package snippets

import (
	"context"
	"testing"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/backend/memlock"
)

func TestTTLs(t *testing.T) {
	locks := connect(t, memlock.NewStore())
	leader := locks.Mutex("leader", distlock.WithTTL(10*time.Second))
	report := locks.Mutex("report", distlock.WithTTL(5*time.Minute), distlock.WithoutRenewal())
	nightly := locks.Mutex("nightly", distlock.MaxHold(time.Hour)) // hung after an hour, free; dead, free after 30 s
	order := locks.Mutex("order:555", distlock.WaitAtMost(2*time.Second))
	for _, m := range []*distlock.Mutex{leader, report, nightly, order} {
		if err := m.Do(t.Context(), func(ctx context.Context) error { return context.Cause(ctx) }); err != nil {
			t.Error(err)
		}
	}
}

// connect returns a client of its own to the store.
func connect(t *testing.T, store *memlock.Store) *distlock.Client {
	t.Helper()
	c, err := distlock.New(store.Connect(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}
