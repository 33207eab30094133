package sim

import "github.com/distlock/distlock/bench/measured"

// Contest is one lock that several processes want, on one Redis. A process whose attempt is refused has
// one place in Redis's queue. A release notifies the first in the queue.
type Contest struct {
	Processes, Goroutines int // goroutines of each process

	Hold       float64 // how long a goroutine keeps the lock
	Window     float64 // how long a process hands the lock off inside itself
	MaxHandoff int     // and how often
}

// span is how many fences a grant of Redis has.
const span = 1024

// Outcome is the outcome of a contest.
type Outcome struct {
	Rate     float64 // acquisitions/s
	Commands float64 // per acquisition
	Longest  float64 // wait, also of those that still wait at the end
	P999     float64 // all waits but one in a thousand are shorter
}

// contest is a Contest that takes place.
type contest struct {
	*Sim
	Contest
	measured.Costs
	server   Station
	holder   *contender   // as Redis knows it
	queue    []*contender // in Redis
	oneWay   float64      // from the caller to the server, or back
	unlocks  float64      // the same for an unlock
	notifies float64      // from the server to a subscriber
	acquired int
	commands int
	waits    Times
}

// contender is a process. While it does not hold, one of its goroutines talks to Redis.
type contender struct {
	*contest
	waiters  []float64 // since when its goroutines wait, the next one first
	busy     bool      // it holds, or one of its goroutines talks to Redis
	began    float64   // since when that one waits
	since    float64   // the grant
	handoffs int
	pending  bool // a notification has not been noticed yet
	sleeping int  // the number of the wait for a notification; 0 if there is none
	sleeps   int
}

// Run has the contest go on for a time.
func (c Contest) Run(costs measured.Costs, time float64) Outcome {
	s := New(1)
	t := &contest{Sim: s, Contest: c, Costs: costs, server: Station{Sim: s}}
	t.oneWay = max(0, costs.Lock-costs.Alone.Acquire) / 2
	t.unlocks = max(0, costs.Unlock-costs.Alone.Release) / 2
	wake := costs.Wake
	if c.Hold == 0 {
		wake = costs.WakeBusy
	}
	t.notifies = max(0, wake-t.unlocks-costs.Turn-2*t.oneWay)
	var all []*contender
	for range c.Processes {
		p := &contender{contest: t}
		all = append(all, p)
		for range c.Goroutines {
			s.After(s.Float64()*Millisecond, func() { p.lock() })
		}
	}
	s.Run(time)
	for _, p := range all {
		for _, began := range p.waiters {
			t.waits = append(t.waits, s.Now-began)
		}
		if p.busy && t.holder != p {
			t.waits = append(t.waits, s.Now-p.began)
		}
	}
	n := float64(t.acquired)
	return Outcome{
		Rate: n / time * Second, Commands: float64(t.commands) / n, Longest: t.waits.Quantile(1), P999: t.waits.Quantile(.999),
	}
}

// lock is called by a goroutine without the lock.
func (c *contender) lock() {
	if c.busy {
		c.waiters = append(c.waiters, c.Now)
		return
	}
	c.contend(c.Now)
}

// contend gives a goroutine the role of the contender. Processes that were refused lately listen before
// they try, which saves an attempt.
func (c *contender) contend(began float64) {
	c.busy, c.began, c.pending = true, began, false
	c.commands += 2 // a subscription, which ends later
	c.call(c.oneWay, c.Watch, func() {}, c.attempt)
}

// call makes a call: now happens in the server, and then answers here.
func (c *contender) call(oneWay, service float64, now, then func()) {
	c.After(oneWay, func() {
		c.server.Do(service, func() {
			now()
			c.After(oneWay, then)
		})
	})
}

func (c *contender) attempt() {
	c.commands++
	granted, service := false, c.Refuse
	if c.holder == nil && (len(c.queue) == 0 || c.queue[0] == c) {
		service = c.Turn / 2
	}
	c.call(c.oneWay, service, func() { granted = c.take() }, func() {
		if granted {
			c.granted()
		} else {
			c.await()
		}
	})
}

// take is the attempt in the server.
func (c *contender) take() bool {
	at := -1
	for i, other := range c.queue {
		if other == c {
			at = i
		}
	}
	switch {
	case c.holder != nil || len(c.queue) > 0 && at != 0:
		if at < 0 {
			c.queue = append(c.queue, c)
		}
		return false
	case at == 0:
		c.queue = c.queue[1:]
	}
	c.holder = c
	return true
}

// await waits for a notification, for about a second at most.
func (c *contender) await() {
	if c.pending {
		c.pending = false
		c.attempt()
		return
	}
	c.sleeps++
	n := c.sleeps
	c.sleeping = n
	c.After(c.Jitter(Second), func() {
		if c.sleeping == n {
			c.sleeping = 0
			c.attempt()
		}
	})
}

func (c *contender) notified() {
	if c.sleeping == 0 {
		c.pending = true
		return
	}
	c.sleeping = 0
	c.attempt()
}

func (c *contender) granted() {
	c.since, c.handoffs = c.Now, 0
	c.hold(c.began)
}

// hold lets a goroutine have the lock, and unlocks it.
func (c *contender) hold(began float64) {
	c.acquired++
	c.waits = append(c.waits, c.Now-began)
	c.After(c.Hold, c.unlock)
}

func (c *contender) unlock() {
	if len(c.waiters) > 0 && c.handoffs < c.MaxHandoff && c.Now-c.since < c.Window {
		c.handoffs++
		next := c.waiters[0]
		c.waiters = append(c.waiters[1:], c.Now) // it locks again
		if c.handoffs%span == 0 {                // the next goroutine asks Redis for more fences
			c.commands++
			c.call(c.oneWay, c.Alone.Acquire, func() {}, func() { c.hold(next) })
			return
		}
		c.After(c.Pass, func() { c.hold(next) })
		return
	}
	c.commands++
	c.call(c.unlocks, c.Turn/2, c.free, func() {
		c.busy = false
		if len(c.waiters) > 0 {
			next := c.waiters[0]
			c.waiters = c.waiters[1:]
			c.contend(next)
		}
		c.lock()
	})
}

// free is the release in the server.
func (c *contender) free() {
	c.holder = nil
	if len(c.queue) > 0 {
		c.After(c.notifies, c.queue[0].notified)
	}
}
