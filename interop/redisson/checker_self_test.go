package redisson

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/interop"
)

// nothing is a lock that excludes no client, and has one token for all.
type nothing struct{ interop.Hold }

func (nothing) Unlock(context.Context) error { return nil }
func (nothing) Fence() uint64                { return 7 }

// unguarded is a crowd of visitors without a lock.
func unguarded(sharing string) interop.Party {
	enter := func(context.Context) (interop.Hold, error) { return nothing{}, nil }
	return interop.Party{Threads: 2, Turns: 100, Kind: interop.Kind{
		Java: "nothing-" + sharing, Sharing: sharing,
		Lock: func(*distlock.Client, string) interop.Locker { return interop.Locker{Lock: enter} },
	}}
}

// Without a lock, the checker reports every kind of violation on both sides, and its count is wrong.
func TestLongCheckerComplains(t *testing.T) {
	alone, reading, counted := unguarded(interop.Alone), unguarded(interop.Reading), unguarded(interop.Counted)
	t.Run("alone", func(t *testing.T) {
		complains(t, []interop.Party{alone}, "another was inside", "token 7 came after 7")
	})
	t.Run("reading", func(t *testing.T) {
		complains(t, []interop.Party{alone, reading}, "another was inside", "a reader was inside", "a writer was inside", "the count changed")
	})
	t.Run("counted", func(t *testing.T) {
		complains(t, []interop.Party{counted}, "4 were inside")
	})
}

func complains(t *testing.T, parties []interop.Party, want ...string) {
	turns, b := interop.Play(t, pairs(t, single(t)), "unguarded", interop.NewChecker(t, 3), parties...)
	for _, side := range []string{"go: ", "java: "} {
		for _, w := range want {
			if !slices.ContainsFunc(b.Complaints, func(c string) bool { return strings.HasPrefix(c, side+w) }) {
				t.Errorf("no complaint %q among %d", side+w, len(b.Complaints))
			}
		}
	}
	if parties[0].Kind.Sharing == interop.Alone && b.Count >= uint64(turns/len(parties)) {
		t.Errorf("%d turns of %d were counted without a lock", b.Count, turns)
	}
}
