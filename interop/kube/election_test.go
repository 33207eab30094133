// Package kube tests that distlock and client-go's leaderelection share a Lease.
package kube

import (
	"context"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// A candidate of each side leads in turn, ten times, and never both.
func TestLongTurns(t *testing.T) {
	t.Parallel()
	place := newPlace(t)
	sides := place.sides()
	var leading, both atomic.Int32
	stalled := stalls(t, ttl/3)
	type term struct {
		side   string
		resign context.CancelFunc
		ended  chan error
		leads  chan struct{}
	}
	start := func(side string) *term {
		ctx, cancel := context.WithCancel(t.Context())
		c := &term{side, cancel, make(chan error, 1), make(chan struct{}, 1)}
		go func() {
			c.ended <- sides[side](ctx, func(term context.Context) {
				if leading.Add(1) > 1 {
					both.Add(1)
				}
				select {
				case c.leads <- struct{}{}:
				default: // it has led before: it lost that term, on a busy machine
				}
				<-term.Done()
				leading.Add(-1)
			})
		}()
		return c
	}
	await := func(c *term) {
		t.Helper()
		select {
		case <-c.leads:
		case err := <-c.ended:
			t.Fatalf("%s ended: %v", c.side, err)
		case <-time.After(2 * time.Minute):
			t.Fatalf("%s does not lead", c.side)
		}
	}
	names := []string{"distlock", "client-go"}
	leader := start(names[0])
	await(leader)
	for i := range 10 {
		next := start(names[(i+1)%2])
		if i < 2 { // it waits beside a leader that renews
			time.Sleep(ttl + ttl/2)
		}
		time.Sleep(ttl / 3)
		leader.resign()
		expect.OK(t, <-leader.ended, leader.side)
		await(next)
		leader = next
	}
	leader.resign()
	expect.OK(t, <-leader.ended)
	if n := both.Load(); n > 0 && !stalled() { // a leader that does not run does not resign
		t.Errorf("both lead %d times", n)
	}
}

// stalls returns a function that reports whether this process stood still for so long since.
func stalls(t *testing.T, long time.Duration) func() bool {
	var longest atomic.Int64
	go func() {
		for last := time.Now(); t.Context().Err() == nil; last = time.Now() {
			time.Sleep(long / 20)
			longest.Store(max(longest.Load(), int64(time.Since(last))))
		}
	}()
	return func() bool { return time.Duration(longest.Load()) > long }
}

// A leader that is killed is followed by a candidate of the other side.
func TestLongKilled(t *testing.T) {
	eachLeader(t, func(leader, next *process) {
		time.Sleep(ttl) // beside a leader that renews
		leader.kill()
		killed := time.Now()
		next.says(t, "leads")
		t.Logf("the other side leads %v after its leader was killed", time.Since(killed))
	})
}

// eachLeader has a process of each side lead, and calls exchange with it and a candidate of the other side, which leads then.
func eachLeader(t *testing.T, exchange func(leader, next *process)) {
	t.Parallel()
	place := newPlace(t)
	leader := place.start(t, "distlock")
	leader.says(t, "leads")
	for _, side := range []string{"client-go", "distlock"} {
		next := place.start(t, side)
		exchange(leader, next)
		leader = next
	}
}

// A leader that is frozen for longer than its TTL is followed by a candidate of the other side, and leads no longer when it goes on.
func TestLongFrozen(t *testing.T) {
	eachLeader(t, func(leader, next *process) {
		must.OK(t, testserver.Freeze(leader.cmd.Process.Pid))
		next.says(t, "leads")
		must.OK(t, leader.cmd.Process.Signal(syscall.SIGCONT))
		leader.says(t, "no longer leads")
	})
}
