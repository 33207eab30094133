//go:build linux

// Package chaos breaks clients, servers, networks and clocks under programs that use distlock, and judges what these
// programs saw. README.md says how to run it, and how to read its result.
package chaos

import (
	"context"
	"errors"
	"flag"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/internal/testkit/must"
)

// promise is the word of docs/guarantees.md for a fault.
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
	more  time.Duration  // for which locks outlive their TTL: a dead process's, or where votes were split
	start func(s *scene) // sets what faults and workers need
	crowd int            // goroutines of a process more, that want the brief locks
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
	return slices.Concat(redisCells(), redlockCells(), consensusCells(), sqlCells(), sqliteCells(), servedCells(), recordCells())
}

// form says how long a cell runs.
type form struct {
	rounds, most int           // at least; at most, until holds and what must show are there
	lasts        time.Duration // at least
	holds        int           // fewer prove nothing
	heals        time.Duration // from the end of a fault to the next grant, beside the TTL
	starves      time.Duration // a call that waits for longer than that was forgotten
	goroutines   int           // of a process, that want the hot lock and the cold ones
	brief        int           // goroutines of a process that want the brief locks
	mixed        int           // … and the mixed ones
	trace        bool          // what is asked of the backend about the hot lock is noted
	atOnce       int           // cells; many that are busy get in each other's way
}

var (
	shortForm = form{rounds: 1, most: 15, holds: 12, heals: 2 * time.Minute, starves: 3 * time.Minute, brief: 1, mixed: 3, goroutines: 4, atOnce: 4}
	fullForm  = form{rounds: 4, most: 60, lasts: 20 * time.Second, holds: 2_000, heals: 2 * time.Second, starves: 20 * time.Second, brief: 6, mixed: 6, goroutines: 4, atOnce: 2}
	full      = flag.Bool("full", false, "run the cells at length, and write results.json")
)

const processes = 3

// TestLongCells runs each cell shortly that TestLongTraces does not run, so that none rots; with -full all at length, and
// keeps the results.
func TestLongCells(t *testing.T) {
	if *full {
		runAll(t, allCells(), fullForm, save)
		return
	}
	rest := slices.DeleteFunc(allCells(), func(c cell) bool { return slices.Contains(traced, c.id()) })
	runAll(t, rest, shortForm, func(*testing.T, result) {})
}

func runAll(t *testing.T, cells []cell, f form, done func(*testing.T, result)) {
	slots, ran := make(chan struct{}, f.atOnce), false
	for _, c := range cells {
		t.Run(c.id(), func(t *testing.T) {
			ran = true
			if !c.alone {
				t.Parallel()
			}
			slots <- struct{}{}
			defer func() { <-slots }()
			e := c.run(t, f)
			r, faults := c.judge(f, e)
			t.Logf("%+v", r)
			for _, fault := range faults {
				t.Error(fault)
			}
			if t.Failed() {
				t.Logf("errors of Lock: %v; the history is in %s", e.errors, keep(t, e.holds))
			}
			done(t, r)
		})
	}
	if !ran {
		t.Error("there is no such cell here; go test -run TestCells -v lists them all, and TestLongTraces runs some of them")
	}
}

// run lets workers compete while the fault strikes again and again, and returns what they saw.
func (c *cell) run(t *testing.T, f form) evidence {
	s := &scene{T: t, ttl: c.ttl}
	c.start(s)
	var socket string
	s.register, socket = startRegister(t)
	began := now()
	s.crew = hire(t, config{URL: s.url, reach: s.reach, Client: s.client, Socket: socket, Goroutines: f.goroutines, Brief: f.brief + c.crowd, Mixed: f.mixed, TTL: c.ttl, Trace: f.trace}, processes)
	if !s.crew.awaitGrant(began, 3*time.Minute) {
		t.Fatalf("no lock is granted: %v", s.crew.errors)
	}
	e, kept := evidence{began: now()}, s.keep()
	for len(e.heals) < f.most && !c.enough(f, e) {
		s.holder = s.register.awaitLongHold(10 * c.ttl).Process
		c.strike(s)
		heal := now()
		e.heals = append(e.heals, heal)
		if !s.crew.awaitGrant(heal, c.ttl+c.more+f.heals+10*time.Second) {
			break
		}
		time.Sleep(c.ttl / 2)
		e.holds, e.updates = s.crew.seen(), s.register.updates()
	}
	e.ended = now()
	s.crew.dismiss()
	e.holds, e.updates = s.crew.seen(), s.register.updates()
	s.crew.mu.Lock()
	e.errors, e.gaveUp, e.stall, e.own, e.trace = s.crew.errors, s.crew.gaveUp, s.crew.stall, s.crew.own, s.crew.trace
	s.crew.mu.Unlock()
	e.kept = kept()
	e.left = leftovers(s, 3*c.ttl+f.heals)
	return e
}

// longTTL outlives every fault.
const longTTL = 2 * time.Minute

// keep takes a lock of a cluster for as long as the faults last, and returns what says how that ended.
func (s *scene) keep() func() error {
	if s.leader == nil {
		return func() error { return nil }
	}
	locks := must.Get(distlock.Open(context.Background(), s.direct, &distlock.Options{TTL: longTTL}))(s)
	lease := must.Get(locks.Mutex("kept").Lock(context.Background()))(s)
	return func() error {
		err := lease.Err()
		lease.Unlock(context.Background())
		locks.Close()
		return err
	}
}

// enough reports whether a run has lasted long enough, and has shown the violation that it must show.
func (c *cell) enough(f form, e evidence) bool {
	return len(e.heals) >= f.rounds && now()-e.began >= int64(f.lasts) && len(e.holds) >= max(f.holds, 100*c.crowd) && c.shown(c.count(e))
}

// leftovers returns the names that are still held or waited for when all workers have ended and the time is over.
func leftovers(s *scene, most time.Duration) (left []string) {
	url := s.url
	if s.direct != "" {
		url = s.direct
	}
	locks := must.Get(distlock.Open(context.Background(), url, nil))(s)
	defer locks.Close()
	for end := time.Now().Add(most); ; time.Sleep(50 * time.Millisecond) {
		left = nil
		for _, name := range slices.Concat([]string{hot}, cold, brief, mixed) {
			switch held, err := isHeld(locks, name); {
			case err != nil:
				left = append(left, err.Error())
			case held:
				left = append(left, name)
			}
		}
		if s.rest != nil {
			left = append(left, s.rest()...)
		}
		if len(left) == 0 || time.Now().After(end) {
			return left
		}
	}
}

// isHeld takes the lock for a moment if the backend can't tell who holds what.
func isHeld(locks *distlock.Client, name string) (bool, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	info, err := locks.Inspect(ctx, name)
	if !errors.Is(err, distlock.ErrUnsupported) {
		return err == nil && len(info.Holders)+len(info.Waiters) > 0, err
	}
	lease, err := locks.Mutex(name).TryLock(ctx)
	if err == nil {
		err = lease.Unlock(ctx)
	}
	if errors.Is(err, distlock.ErrHeld) {
		return true, nil
	}
	return false, err
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
