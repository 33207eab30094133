//go:build linux

// Package chaos breaks clients, servers, networks and clocks under programs that use distlock, and judges what these
// programs saw. README.md says how to run it, and how to read its result.
package chaos

import (
	"context"
	"flag"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/distlock/distlock"
	"github.com/distlock/distlock/chaos/internal/judge"
)

// promise is what docs/guarantees.md says of a fault.
type promise string

const (
	safe       promise = "S" // no overlap, fences increase, no update is lost
	withFences promise = "F" // two may hold the lock at once; fences increase, so nothing is lost with them
	unsafe     promise = "U" // fences can go back, too
)

// deployment is a backend as it is set up.
type deployment struct {
	name  string // of its cells, such as "redis-aof"
	title string // in the table
	ttl   time.Duration
	start func(s *scene) // sets what faults and workers need
	alone bool           // no other cell may run beside
}

// cell is a deployment and a fault.
type cell struct {
	deployment
	fault
	short   string // of the fault, in the cell's name
	promise promise
}

func (c *cell) id() string { return c.name + "-" + c.short }

// allCells returns the cells of all backends, in the order of the table.
func allCells() []cell {
	return slices.Concat(redisCells(), sqliteCells())
}

// form says how long a cell runs.
type form struct {
	rounds, most int           // at least; at most, until holds and what must show are there
	holds        int           // fewer prove nothing
	heals        time.Duration // after a fault, beside the TTL, until someone has a lock again
	starves      time.Duration // a call that waits for longer than that was forgotten
}

var (
	shortForm = form{rounds: 2, most: 15, holds: 25, heals: 30 * time.Second, starves: time.Minute}
	fullForm  = form{rounds: 12, most: 60, holds: 200, heals: 2 * time.Second, starves: 20 * time.Second}
	full      = flag.Bool("full", false, "run the cells at length, and write results.json")
)

const (
	processes  = 3
	goroutines = 4
	atOnce     = 4 // cells
)

// TestChaos runs all cells at length: make chaos. One of them: go test -run TestChaos/redis-aof-kill-server -full.
func TestChaos(t *testing.T) {
	if !*full {
		t.Skip("run it by make chaos, or with -full")
	}
	runAll(t, fullForm, func(r result) { save(t, r) })
}

// TestLongCells runs each cell shortly, so that none rots.
func TestLongCells(t *testing.T) { runAll(t, shortForm, func(result) {}) }

func runAll(t *testing.T, f form, done func(result)) {
	slots, ran := make(chan struct{}, atOnce), false
	for _, c := range allCells() {
		t.Run(c.id(), func(t *testing.T) {
			ran = true
			if !c.alone {
				t.Parallel()
			}
			slots <- struct{}{}
			defer func() { <-slots }()
			r := c.run(t, f)
			t.Logf("%+v", r)
			if !t.Failed() {
				done(r)
			}
		})
	}
	if !ran {
		t.Error("there is no such cell; go test -run TestCells -v lists them all")
	}
}

// run lets workers compete while the fault strikes again and again, and judges what they saw.
func (c *cell) run(t *testing.T, f form) result {
	s := &scene{T: t, ttl: c.ttl}
	c.start(s)
	var socket string
	s.register, socket = startRegister(t)
	began := now()
	s.crew = hire(t, config{URL: s.url, Socket: socket, Goroutines: goroutines, TTL: c.ttl}, processes)
	if !s.crew.awaitGrant(began, 30*time.Second) {
		t.Fatalf("no lock is granted: %v", s.crew.errors)
	}
	began = now()
	var heals []int64
	for len(heals) < f.most && (len(heals) < f.rounds || len(s.crew.seen()) < f.holds || !c.shown(c.count(s))) {
		s.register.awaitLongHold(10 * c.ttl)
		c.strike(s)
		heals = append(heals, now())
		if !s.crew.awaitGrant(heals[len(heals)-1], c.ttl+f.heals+10*time.Second) {
			break // judged below
		}
		time.Sleep(c.ttl / 2)
	}
	ended := now()
	s.crew.dismiss()
	r := c.count(s)
	r.Rounds, r.Seconds = len(heals), round(time.Duration(ended-began))
	c.judge(s, f, &r, heals, began, ended)
	return r
}

// count counts what has happened so far.
func (c *cell) count(s *scene) result {
	holds := s.crew.seen()
	return result{
		Cell: c.id(), Promise: c.promise, Holds: len(holds), Updates: s.register.updates(),
		Overlaps:    judge.Overlaps(holds, judge.Hold.Trusted),
		Believed:    judge.Overlaps(holds, judge.Hold.Believed),
		FenceFaults: judge.FenceFaults(holds),
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

func (c *cell) judge(s *scene, f form, r *result, heals []int64, began, ended int64) {
	holds := s.crew.seen()
	ok, orderly := judge.Linearizable(holds), judge.Orderly(holds)
	if (ok == porcupine.Ok) != orderly || ok == porcupine.Unknown {
		s.Errorf("the judges do not agree: porcupine says %v, the sweep %v", ok, orderly)
	}
	if r.Holds < f.holds {
		s.Errorf("%d holds prove nothing, want %d; errors: %v", r.Holds, f.holds, s.crew.errors)
	}
	if !c.shown(*r) {
		s.Errorf("the promise is %s, and nothing went wrong", c.promise)
	}
	if c.promise == safe && (r.Overlaps > 0 || r.Lost > r.LostLate || !orderly) {
		s.Errorf("two holders, or updates lost in time: %+v", *r)
	}
	if c.promise != unsafe && (r.FenceFaults > 0 || r.LostFenced > 0) {
		s.Errorf("the fences do not protect: %+v", *r)
	}
	if s.Failed() {
		s.Logf("history: %s", keep(s.T, holds))
	}
	r.Gap = round(judge.LongestGap(holds, began, ended))
	healed, ok2 := judge.Healed(holds, heals)
	if r.Healed = round(healed); !ok2 || healed > c.ttl+f.heals {
		s.Errorf("after a fault no lock was granted for %v, %v", healed, ok2)
	}
	if s.crew.gaveUp > f.starves {
		s.Errorf("a call of Lock waited for %v, and was never granted the lock", s.crew.gaveUp)
	}
	for name, owners := range leftovers(s, c.ttl) {
		s.Errorf("%s is still held by %v", name, owners)
	}
}

// leftovers returns the holders that are still there when all workers have ended and the TTL is over.
func leftovers(s *scene, ttl time.Duration) map[string][]distlock.Holder {
	url := s.url
	if s.direct != "" {
		url = s.direct
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	locks, err := distlock.Open(ctx, url, nil)
	if err != nil {
		s.Fatal(err)
	}
	defer locks.Close()
	left := map[string][]distlock.Holder{}
	for end := time.Now().Add(3*ttl + 20*time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		clear(left)
		for _, name := range []string{hot, "cold0", "cold1", "cold2"} {
			info, err := locks.Inspect(ctx, name)
			if err != nil {
				s.Fatal(err)
			}
			if len(info.Holders) > 0 {
				left[name] = info.Holders
			}
		}
		if len(left) == 0 {
			break
		}
	}
	return left
}

// round returns seconds with two digits after the point.
func round(d time.Duration) float64 {
	return float64(d.Round(10*time.Millisecond)) / float64(time.Second)
}

// The name of each cell is its own.
func TestCells(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range allCells() {
		if seen[c.id()] || strings.ContainsAny(c.id(), " /") || c.fault.begin == nil || c.promise == "" {
			t.Errorf("%s", c.id())
		}
		seen[c.id()] = true
	}
	t.Logf("%d cells: %v", len(seen), slices.Sorted(maps.Keys(seen)))
}
