package strings

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// room is what the lock protects. It notices when two are inside, and loses an update
// when two change its number at once.
type room struct {
	inside, number   atomic.Int64
	overlaps, visits atomic.Int64
	changes          atomic.Int64 // visits after one by another library
	last             atomic.Value // string: library of the last visitor
}

func (r *room) visit(library string) {
	if r.inside.Add(1) != 1 {
		r.overlaps.Add(1)
	}
	n := r.number.Load()
	time.Sleep(50 * time.Microsecond)
	r.number.Store(n + 1)
	if r.last.Swap(library) != library {
		r.changes.Add(1)
	}
	r.visits.Add(1)
	r.inside.Add(-1)
}

// takeTurns lets a side visit the room so often, under the lock.
func takeTurns(ctx context.Context, s side, library, name string, r *room, turns int) error {
	for range turns {
		h, err := s.try(ctx, name, 30*time.Second)
		for errors.Is(err, errBusy) && ctx.Err() == nil {
			time.Sleep(rand.N(time.Millisecond))
			h, err = s.try(ctx, name, 30*time.Second)
		}
		if err != nil {
			return err
		}
		r.visit(library)
		if err := h.unlock(ctx); err != nil {
			return err
		}
		time.Sleep(rand.N(time.Millisecond)) // somebody else's turn
	}
	return nil
}

// fight lets two of each library take turns under one name.
func fight(t *testing.T, turns int, sides map[string][]side) *room {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	for _, all := range sides {
		for _, s := range all { // is ready, before any of them begins
			is(t, "unlock", take(t, s, newName(), time.Minute).unlock(ctx), nil)
		}
	}
	r, name := &room{}, newName()
	var wg sync.WaitGroup
	for library, all := range sides {
		for _, s := range all {
			wg.Go(func() {
				if err := takeTurns(ctx, s, library, name, r, turns); err != nil {
					t.Errorf("%s: %v", library, err)
				}
			})
		}
	}
	wg.Wait()
	t.Logf("%d visits, %d after one by the other library; %d overlaps, %d lost updates",
		r.visits.Load(), r.changes.Load(), r.overlaps.Load(), r.visits.Load()-r.number.Load())
	return r
}

const turnsEach = 300

// Four clients, two of either library, take a thousand turns and more: never two at once.
func TestTakingTurns(t *testing.T) {
	eachPeer(t, func(t *testing.T, peer func(*testing.T) side) {
		r := fight(t, turnsEach, map[string][]side{
			"distlock": {newDistlock(t), newDistlock(t)}, "peer": {peer(t), peer(t)},
		})
		if r.visits.Load() != 4*turnsEach || r.overlaps.Load() != 0 || r.number.Load() != r.visits.Load() {
			t.Error("the lock did not keep them apart")
		}
		if r.changes.Load() < turnsEach/4 {
			t.Error("they did not take turns")
		}
	})
}

// The room notices those who do not share a lock: here distlock forgot the prefix.
func TestRoomNoticesOverlaps(t *testing.T) {
	r := fight(t, turnsEach, map[string][]side{
		"distlock": {openDistlock(t, ""), openDistlock(t, "")}, "peer": {newRedislock(t), newRedislock(t)},
	})
	if r.overlaps.Load() == 0 || r.number.Load() == r.visits.Load() {
		t.Error("nobody noticed")
	}
}
