package peers

import (
	"context"
	"testing"

	"github.com/distlock/distlock/backend/memlock"
)

// free is a lock that everybody gets at once.
type free struct{}

func (free) Lock(context.Context, string) (Held, error) { return free{}, nil }
func (free) Unlock(context.Context) error               { return nil }
func (free) Fence() uint64                              { return 7 }

func TestWhatExcludesPasses(t *testing.T) {
	store := memlock.NewStore()
	a, b := NewDistlock(t, store.Connect(), nil), NewDistlock(t, store.Connect(), nil)
	Turns(t, "turns", 100, map[string][]Side{"a": {a, a}, "b": {b}})
	if n := Crowd(t, a, "crowd"); n != 1 {
		t.Errorf("%d inside at once", n)
	}
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

func TestWhatDoesNotExcludeIsNoticed(t *testing.T) {
	var l ledger
	l.inside.Store(1) // somebody else
	l.visit("a", 7)
	l.visit("a", 7)
	if l.overlaps.Load() != 2 || l.stale.Load() != 1 {
		t.Errorf("%d overlaps, %d fences too small", l.overlaps.Load(), l.stale.Load())
	}
	if n := Crowd(t, free{}, "crowd"); n < 2 {
		t.Errorf("%d inside at once", n)
	}
}
