package judge

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/distlock/distlock/internal/testkit/expect"
)

// hold is a hold of the lock "a", called 5 before its grant.
func hold(fence uint64, grant, end int64) Hold {
	return Hold{Name: "a", Fence: fence, Call: grant - 5, Grant: grant, End: end, Deadline: 1000}
}

// Each violation is seen by the judge that looks for it, and by porcupine.
func TestPlanted(t *testing.T) {
	late := hold(1, 10, 60) // saw at 60 that its lease had ended at 30
	late.Deadline = 30
	other := hold(1, 15, 40)
	other.Name = "b"
	waited := hold(1, 30, 40) // called before the other's grant, and its fence is the smaller one
	waited.Call = 1
	elsewhere := func(h Hold) Hold {
		h.Process, h.Owner = 1, "other"
		return h
	}
	anew := hold(6, 50, 60) // not passed on
	anew.Owner = "new"
	arrivedLate := hold(2, 15, 40) // its deadline had passed when the answer came
	arrivedLate.Deadline = 12
	for name, c := range map[string]struct {
		holds                      []Hold
		overlaps, believed, faults int
		orderly                    bool
	}{
		"one after the other":        {[]Hold{hold(1, 10, 20), hold(2, 20, 30), hold(3, 40, 50)}, 0, 0, 0, true},
		"two names":                  {[]Hold{hold(1, 10, 20), other}, 0, 0, 0, true},
		"overlap":                    {[]Hold{hold(1, 10, 20), hold(2, 19, 30)}, 1, 1, 0, false},
		"one within the other":       {[]Hold{hold(1, 10, 50), hold(2, 19, 30), hold(3, 40, 45)}, 2, 2, 0, false},
		"overlap as a paused holder": {[]Hold{late, hold(2, 35, 50)}, 0, 1, 0, true},
		"a grant that came too late": {[]Hold{hold(1, 10, 20), arrivedLate}, 0, 1, 0, true},
		"fence goes back":            {[]Hold{hold(2, 10, 20), hold(1, 30, 40)}, 0, 0, 1, false},
		"fence goes back beyond one": {[]Hold{hold(5, 10, 20), hold(7, 30, 40), elsewhere(hold(6, 50, 60))}, 0, 0, 1, false},
		"an older grant passed on":   {[]Hold{hold(5, 10, 20), elsewhere(hold(9, 15, 40)), hold(6, 50, 60), hold(7, 70, 80)}, 1, 1, 0, false},
		"another grant, of its own":  {[]Hold{hold(5, 10, 20), elsewhere(hold(9, 30, 40)), hold(7, 50, 60)}, 0, 0, 1, false},
		"another grant, the next":    {[]Hold{hold(5, 10, 20), elsewhere(hold(7, 30, 40)), anew}, 0, 0, 1, false},
		"fence is not unique":        {[]Hold{hold(1, 10, 20), hold(1, 30, 40)}, 0, 0, 1, false},
		"one fence for two at once":  {[]Hold{hold(1, 10, 12), hold(1, 13, 40)}, 0, 0, 1, false},
		"fences of calls at once":    {[]Hold{hold(2, 10, 20), waited}, 0, 0, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			overlaps, believed := Overlaps(c.holds, Hold.Trusted), Overlaps(c.holds, Hold.Believed)
			faults, orderly := FenceFaults(c.holds), Orderly(c.holds)
			if overlaps != c.overlaps || believed != c.believed || faults != c.faults || orderly != c.orderly {
				t.Errorf("%d overlaps, %d as believed, %d fence faults, orderly %v; want %+v", overlaps, believed, faults, orderly, c)
			}
			if r := Linearizable(c.holds); (r == porcupine.Ok) != c.orderly {
				t.Errorf("porcupine says %v", r)
			}
		})
	}
}

// Readers have readers beside them, permits as many as there are, and neither has anybody else.
func TestKindsBesideEachOther(t *testing.T) {
	of := func(h Hold, kind string, room int) Hold {
		h.Kind, h.Room = kind, room
		return h
	}
	reader := func(fence uint64, grant, end int64) Hold { return of(hold(fence, grant, end), "read", 100) }
	permit := func(fence uint64, grant, end int64) Hold { return of(hold(fence, grant, end), "permits", 2) }
	for name, c := range map[string]struct {
		holds            []Hold
		overlaps, faults int
	}{
		"readers":                      {[]Hold{reader(1, 10, 50), reader(2, 20, 40), reader(3, 30, 60)}, 0, 0},
		"a writer beside a reader":     {[]Hold{reader(1, 10, 50), hold(2, 20, 40)}, 1, 0},
		"a reader beside a writer":     {[]Hold{hold(1, 10, 50), reader(2, 20, 40)}, 1, 0},
		"a writer after readers":       {[]Hold{reader(1, 10, 50), reader(2, 20, 40), hold(3, 50, 60)}, 0, 0},
		"a permit beside a reader":     {[]Hold{reader(1, 10, 50), permit(2, 20, 40)}, 1, 0},
		"as many permits as there are": {[]Hold{permit(1, 10, 50), permit(2, 20, 30), permit(3, 30, 60)}, 0, 0},
		"a permit too many":            {[]Hold{permit(1, 10, 50), permit(2, 20, 31), permit(3, 30, 60)}, 1, 0},
		"a writer's fence goes back":   {[]Hold{reader(4, 10, 20), hold(3, 30, 40)}, 0, 1},
		"a reader's fence repeats":     {[]Hold{reader(4, 10, 20), reader(4, 30, 40)}, 0, 1},
		"one fence for two readers":    {[]Hold{reader(4, 10, 20), reader(4, 12, 40)}, 0, 0},
		"a fence that is not known":    {[]Hold{hold(4, 10, 20), reader(0, 30, 40), hold(5, 50, 60)}, 0, 0},
	} {
		if overlaps, faults := Overlaps(c.holds, Hold.Trusted), FenceFaults(c.holds); overlaps != c.overlaps || faults != c.faults {
			t.Errorf("%s: %d overlaps and %d fence faults; want %+v", name, overlaps, faults, c)
		}
	}
}

// The judge and porcupine agree on random histories, of which many are legal.
func TestAgreesWithPorcupine(t *testing.T) {
	legal, all := 0, 10_000
	for seed := range uint64(all) {
		holds := history(rand.New(rand.NewPCG(seed, 0)))
		r, orderly := Linearizable(holds), Orderly(holds)
		if orderly {
			legal++
		}
		if (r == porcupine.Ok) != orderly || r == porcupine.Unknown {
			t.Fatalf("seed %d: porcupine says %v, the judge %v: %+v", seed, r, orderly, holds)
		}
	}
	t.Logf("%d of %d were legal", legal, all)
	if legal < all/10 || legal > all*9/10 {
		t.Error("that is no test of both answers")
	}
}

// history returns some holds, mostly one after the other, of two names.
func history(r *rand.Rand) (holds []Hold) {
	now, fence := [2]int64{10, 10}, uint64(0)
	for range 2 + r.IntN(10) {
		name := r.IntN(2)
		grant := now[name] + r.Int64N(5)
		end := grant + 1 + r.Int64N(10)
		fence += 1 + r.Uint64N(3)
		h := Hold{Name: string(rune('a' + name)), Fence: fence, Call: grant - r.Int64N(10), Grant: grant, End: end, Deadline: end + r.Int64N(5) - 1}
		now[name] = end
		switch r.IntN(40) {
		case 0:
			now[name] -= 3
		case 1:
			fence -= min(fence, 4)
		}
		holds = append(holds, h)
	}
	return holds
}

func TestLiveness(t *testing.T) {
	holds := []Hold{hold(1, 10, 20), hold(2, 50, 60)}
	expect.Equal(t, LongestGap(holds, 0, 70), 40, "the longest gap")
	expect.Equal(t, LongestGap(nil, 0, 70), 70, "without grants the longest gap")
	if longest, ok := Healed(holds, []int64{5, 20}); !ok || longest != 30*time.Nanosecond {
		t.Errorf("healed after %d, %v", longest, ok)
	}
	if _, ok := Healed(holds, []int64{51}); ok {
		t.Error("no grant after the heal, and it is not seen")
	}
}
