//go:build linux

package chaos

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/distlock/distlock"
	"github.com/distlock/distlock/internal/testkit/trace"
	"github.com/distlock/distlock/proof/internal/judge"
)

// evidence is the outcome of a run of a cell, for the judges.
type evidence struct {
	holds        []judge.Hold
	updates      Updates
	errors       map[string]int // of calls of Lock
	gaveUp       time.Duration  // the longest that a call waited before all were called off
	stall        time.Duration  // the longest that the machine did not let a worker run
	own          time.Duration  // … that it did not let this process run, in which the proxies are
	heals        []int64        // when faults ended
	began, ended int64
	left         []string // names that are held though their holders have ended
	kept         error    // how a lock with a long TTL was lost
	trace        []trace.Event
}

// count counts what has happened.
func (c *cell) count(e evidence) result {
	return result{
		Cell: c.id(), Promise: c.promise, Rounds: len(e.heals), Holds: len(e.holds), Updates: e.updates,
		Overlaps:    judge.Overlaps(e.holds, judge.Hold.Trusted),
		Believed:    judge.Overlaps(e.holds, judge.Hold.Believed),
		FenceFaults: judge.FenceFaults(e.holds),
	}
}

// shown reports whether a cell has shown what its promise does not exclude.
func (c *cell) shown(r result) bool {
	switch c.promise {
	case withFences:
		return r.Overlaps > 0 || r.Lost > 0
	case unsafe:
		return r.FenceFaults > 0
	}
	return true
}

// judge returns what was counted, and in what the promise was broken or not put to the test.
func (c *cell) judge(f form, e evidence) (r result, faults []string) {
	fault := func(is bool, format string, args ...any) {
		if is {
			faults = append(faults, fmt.Sprintf(format, args...))
		}
	}
	r = c.count(e)
	r.Stall = round(e.stall)
	waited := slices.DeleteFunc(slices.Clone(e.holds), isBrief)
	r.Seconds, r.Gap = round(time.Duration(e.ended-e.began)), round(judge.LongestGap(waited, e.began, e.ended))
	healed, granted := judge.Healed(waited, e.heals)
	r.Healed = round(healed)
	linearizable, orderly := judge.Linearizable(e.holds), judge.Orderly(e.holds)

	fault(r.Holds < f.holds, "%d holds prove nothing, want %d", r.Holds, f.holds)
	fault(!c.shown(r), "the promise is %s, and nothing went wrong", c.promise)
	fault((linearizable == porcupine.Ok) != orderly || linearizable == porcupine.Unknown,
		"the judges do not agree: porcupine says %v, the sweep %v", linearizable, orderly)
	if c.promise == safe {
		fault(r.Overlaps > 0 || !orderly, "there are two holders, or fences are out of order")
		fault(r.Lost > r.LostLate, "an update is lost")
		fault(r.Believed > r.Overlaps && e.stall < c.ttl/20, "contexts ended late, though workers stalled for %v at most", e.stall)
	}
	if c.promise != unsafe {
		fault(r.FenceFaults > 0, "fences do not increase")
		fault(r.LostFenced > 0, "an update is lost though it has a fence")
	}
	fault(!granted, "no lock is granted after a fault")
	// A machine that stops workers for so long says nothing about times.
	if turn := c.ttl + c.more; e.stall < time.Second {
		fault(healed > turn+f.heals, "after a fault no lock is granted for %v", healed)
		fault(e.gaveUp > 4*turn+f.starves, "a call of Lock waited for %v", e.gaveUp)
	}
	fault(e.kept != nil && r.Gap < longTTL.Seconds()/2, "a lock with a TTL of %v is lost: %v", longTTL, e.kept)
	fault(len(e.left) > 0, "%v are still held", e.left)
	return r, faults
}

// Each fault is seen, and nothing else is.
func TestVerdict(t *testing.T) {
	good := func() evidence {
		e := evidence{ended: 40 * int64(time.Millisecond), heals: []int64{5, 15}}
		for i := range int64(3) {
			h := judge.Hold{ID: int(i), Name: hot, Fence: uint64(i + 1), Call: 10 * i, Grant: 10*i + 2, End: 10*i + 9, Deadline: 10*i + 9}
			e.holds = append(e.holds, h)
		}
		return e
	}
	overlap := func(e *evidence) { e.holds[0].End, e.holds[0].Deadline = 15, 15 }
	fenceBack := func(e *evidence) { e.holds[2].Fence = 1 }
	late := func(e *evidence) { e.holds[0].End = 15 }
	lost := func(e *evidence) { e.updates.Lost = 1 }
	for _, c := range []struct {
		promise promise
		plant   func(*evidence)
		want    string // part of the only fault; empty: none
	}{
		{safe, func(*evidence) {}, ""},
		{safe, overlap, "two holders"},
		{safe, late, "contexts ended late"},
		{safe, func(e *evidence) { late(e); e.stall = time.Second }, ""},
		{safe, lost, "an update is lost"},
		{safe, func(e *evidence) { e.updates = Updates{Lost: 1, LostLate: 1} }, ""},
		{safe, func(e *evidence) { e.holds, e.heals = e.holds[:2], nil }, "2 holds prove nothing"},
		{safe, func(e *evidence) { e.heals = []int64{30} }, "no lock is granted after"},
		{safe, func(e *evidence) {
			e.holds[2].Grant += int64(2 * time.Second)
			e.holds[2].End, e.holds[2].Deadline = e.holds[2].Grant+1, e.holds[2].Grant+1
		}, "for 2"},
		{safe, func(e *evidence) { e.gaveUp = time.Hour }, "waited for 1h"},
		{safe, func(e *evidence) { e.kept = distlock.ErrLost }, "is lost"},
		{safe, func(e *evidence) { e.left = []string{hot} }, "[hot] are still held"},
		{withFences, overlap, ""},
		{withFences, lost, ""},
		{withFences, func(*evidence) {}, "nothing went wrong"},
		{withFences, func(e *evidence) { overlap(e); fenceBack(e) }, "fences do not increase"},
		{withFences, func(e *evidence) { e.updates = Updates{Lost: 1, LostFenced: 1} }, "though it has a fence"},
		{unsafe, fenceBack, ""},
		{unsafe, overlap, "nothing went wrong"},
	} {
		e := good()
		c.plant(&e)
		cell := cell{promise: c.promise}
		cell.ttl = time.Millisecond
		_, faults := cell.judge(form{holds: 3, heals: time.Second, starves: time.Minute}, e)
		if c.want == "" && len(faults) > 0 || c.want != "" && (len(faults) != 1 || !strings.Contains(faults[0], c.want)) {
			t.Errorf("%s: %q, want %q", c.promise, faults, c.want)
		}
	}
}
