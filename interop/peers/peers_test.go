package peers

import (
	"context"
	"testing"

	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/internal/testkit/expect"
)

// free is a lock that every peer gets at once.
type free struct{}

func (free) Lock(context.Context, string) (Held, error) { return free{}, nil }
func (free) Unlock(context.Context) error               { return nil }
func (free) Fence() uint64                              { return 7 }

func TestExclusion(t *testing.T) {
	store := memlock.NewStore()
	a, b := NewDistlock(t, store.Connect(), nil), NewDistlock(t, store.Connect(), nil)
	Turns(t, "turns", 100, map[string][]Peer{"a": {a, a}, "b": {b}})
	expect.Equal(t, Crowd(t, a, "crowd"), 1, "inside at once")
	h, err := a.Try(t.Context(), "try")
	if h == nil || err != nil {
		t.Fatal(h, err)
	}
	if h, err := b.Try(t.Context(), "try"); h != nil || err != nil {
		t.Error(h, err)
	}
	Give(t, h)
	WakeUps(t, 3, b, a, func() string { return "wake" }, func(string) {})
}

func TestNoExclusion(t *testing.T) {
	if n := Crowd(t, free{}, "crowd"); n < 2 {
		t.Errorf("%d inside at once, want 2 or more", n)
	}
}
