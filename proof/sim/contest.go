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
func (p *contender) lock() {
	if p.busy {
		p.waiters = append(p.waiters, p.Now)
		return
	}
	p.contend(p.Now)
}

// contend gives a goroutine the role of the contender. Processes that were refused lately listen before
// they try, which saves an attempt.
func (p *contender) contend(began float64) {
	p.busy, p.began, p.pending = true, began, false
	p.commands += 2 // a subscription, which ends later
	p.call(p.oneWay, p.Watch, func() {}, p.attempt)
}

// call makes a call: now happens in the server, and then answers here.
func (p *contender) call(oneWay, service float64, now, then func()) {
	p.After(oneWay, func() {
		p.server.Do(service, func() {
			now()
			p.After(oneWay, then)
		})
	})
}

func (p *contender) attempt() {
	p.commands++
	granted, service := false, p.Refuse
	if p.holder == nil && (len(p.queue) == 0 || p.queue[0] == p) {
		service = p.Turn / 2
	}
	p.call(p.oneWay, service, func() { granted = p.take() }, func() {
		if granted {
			p.granted()
		} else {
			p.await()
		}
	})
}

// take is the attempt in the server.
func (p *contender) take() bool {
	at := -1
	for i, other := range p.queue {
		if other == p {
			at = i
		}
	}
	switch {
	case p.holder != nil || len(p.queue) > 0 && at != 0:
		if at < 0 {
			p.queue = append(p.queue, p)
		}
		return false
	case at == 0:
		p.queue = p.queue[1:]
	}
	p.holder = p
	return true
}

// await waits for a notification, for about a second at most.
func (p *contender) await() {
	if p.pending {
		p.pending = false
		p.attempt()
		return
	}
	p.sleeps++
	n := p.sleeps
	p.sleeping = n
	p.After(p.Jitter(Second), func() {
		if p.sleeping == n {
			p.sleeping = 0
			p.attempt()
		}
	})
}

func (p *contender) notified() {
	if p.sleeping == 0 {
		p.pending = true
		return
	}
	p.sleeping = 0
	p.attempt()
}

func (p *contender) granted() {
	p.since, p.handoffs = p.Now, 0
	p.hold(p.began)
}

// hold lets a goroutine have the lock, and unlocks it.
func (p *contender) hold(began float64) {
	p.acquired++
	p.waits = append(p.waits, p.Now-began)
	p.After(p.Hold, p.unlock)
}

func (p *contender) unlock() {
	if len(p.waiters) > 0 && p.handoffs < p.MaxHandoff && p.Now-p.since < p.Window {
		p.handoffs++
		next := p.waiters[0]
		p.waiters = append(p.waiters[1:], p.Now) // it locks again
		if p.handoffs%span == 0 {                // the next goroutine asks Redis for more fences
			p.commands++
			p.call(p.oneWay, p.Alone.Acquire, func() {}, func() { p.hold(next) })
			return
		}
		p.After(p.Pass, func() { p.hold(next) })
		return
	}
	p.commands++
	p.call(p.unlocks, p.Turn/2, p.free, func() {
		p.busy = false
		if len(p.waiters) > 0 {
			next := p.waiters[0]
			p.waiters = p.waiters[1:]
			p.contend(next)
		}
		p.lock()
	})
}

// free is the release in the server.
func (p *contender) free() {
	p.holder = nil
	if len(p.queue) > 0 {
		p.After(p.notifies, p.queue[0].notified)
	}
}
