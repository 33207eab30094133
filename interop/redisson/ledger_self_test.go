package redisson

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/distlock/distlock"
)

// nothing excludes nobody, and has one token for all.
type nothing struct{ hold }

func (nothing) Unlock(context.Context) error { return nil }
func (nothing) Fence() uint64                { return 7 }

// unguarded is a crowd of visitors without a lock.
func unguarded(sharing string) party {
	enter := func(context.Context) (hold, error) { return nothing{}, nil }
	return party{threads: 2, turns: 100, kind: kind{
		java: "nothing-" + sharing, sharing: sharing,
		lock: func(*distlock.Client, string) locker { return locker{lock: enter} },
	}}
}

// Without a lock before it the ledger complains, on either side of everything that
// there is to complain of, and its count is off.
func TestLedgerComplains(t *testing.T) {
	alone, reading, counted := unguarded("alone"), unguarded("reading"), unguarded("counted")
	t.Run("alone", func(t *testing.T) {
		complains(t, []party{alone}, "another was inside", "token 7 came after 7")
	})
	t.Run("reading", func(t *testing.T) {
		complains(t, []party{alone, reading}, "another was inside", "a reader was inside", "a writer was inside", "the count changed")
	})
	t.Run("counted", func(t *testing.T) {
		complains(t, []party{counted}, "4 were inside")
	})
}

func complains(t *testing.T, parties []party, want ...string) {
	turns, b := play(t, single(t), "unguarded", newLedger(t, 3), parties...)
	for _, side := range []string{"go: ", "java: "} {
		for _, w := range want {
			if !slices.ContainsFunc(b.complaints, func(c string) bool { return strings.HasPrefix(c, side+w) }) {
				t.Errorf("no complaint %q among %d", side+w, len(b.complaints))
			}
		}
	}
	if parties[0].kind.sharing == "alone" && b.count >= uint64(turns/len(parties)) {
		t.Errorf("%d turns of %d were counted in spite of all", b.count, turns)
	}
}
