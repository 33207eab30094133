//go:build linux

package soak

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/faultproxy"
	"github.com/distlock/distlock/internal/wait"
	"github.com/distlock/distlock/proof/internal/course"
)

const (
	ttl = 5 * time.Second

	// tiniest is the shortest TTL of the load, where the store has no longer minimum.
	tiniest = 300 * time.Millisecond

	// hot is how many names of a store get a third of its turns.
	hot = 9

	workers = 12 // of each store
)

// load makes locks of one store: two clients, which take turns at its names. A name is of one kind for good.
type load struct {
	clients [2]*distlock.Client
	names   int
	longest time.Duration // that a lock is held, but for a few
	tiny    time.Duration

	gate        *sync.RWMutex // its owner has no turn in flight
	begun, done atomic.Int64  // turns

	mu       sync.Mutex
	outcomes map[string]int
	odd      []error // that no turn may end with
}

func newLoad(clients [2]*distlock.Client, names int, gate *sync.RWMutex) *load {
	return &load{
		clients: clients, names: names, gate: gate, longest: 4 * time.Millisecond, outcomes: map[string]int{},
		tiny: max(tiniest, clients[0].Caps().MinTTL),
	}
}

// touched returns how many names have been used.
func (l *load) touched() int { return int(min(l.begun.Load(), int64(l.names))) }

// run takes turns until ctx ends, at most rate a second.
func (l *load) run(ctx context.Context, rate float64) {
	var wg sync.WaitGroup
	for i := range workers {
		wg.Go(func() {
			for ctx.Err() == nil {
				pause := time.Duration(workers / rate * float64(time.Second))
				due := time.Now().Add(pause/2 + rand.N(pause+1))
				l.turn(ctx, i%2)
				wait.Sleep(ctx, time.Until(due))
			}
		})
	}
	wg.Wait()
}

// cut ends the connections of a proxy now and then.
func (l *load) cut(ctx context.Context, p *faultproxy.Proxy) {
	for wait.Sleep(ctx, 5*time.Second+rand.N(10*time.Second)) == nil {
		l.gate.RLock()
		p.Cut()
		l.gate.RUnlock()
		l.count("cut")
	}
}

func (l *load) count(what string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.outcomes[what]++
}

// fault counts an error, if there is one, and reports whether there is.
func (l *load) fault(err error) bool {
	switch {
	case err == nil:
		return false
	case errors.Is(err, distlock.ErrHeld):
		l.count("refused")
	case errors.Is(err, distlock.ErrLost):
		l.count("lost")
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		l.count("given up")
	case errors.Is(err, distlock.ErrUnavailable):
		l.count("unavailable")
	default:
		l.count("odd")
		l.mu.Lock()
		defer l.mu.Unlock()
		if len(l.odd) < 10 {
			l.odd = append(l.odd, err)
		}
	}
	return true
}

// judge fails for errors that no fault explains, and if there was no such load.
func (l *load) judge(t *testing.T, store string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, err := range l.odd {
		t.Errorf("%s: %v", store, err)
	}
	if l.outcomes["taken"] < l.names/20 { // a busy machine makes callers give up
		t.Errorf("%s: %d locks of %d names were taken", store, l.outcomes["taken"], l.names)
	}
}

// String lists what turns have come to.
func (l *load) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []string
	for _, what := range slices.Sorted(maps.Keys(l.outcomes)) {
		all = append(all, fmt.Sprintf("%d %s", l.outcomes[what], what))
	}
	return fmt.Sprintf("%d turns: %s", l.done.Load(), strings.Join(all, ", "))
}

// pick returns the number of a name: at first of each in turn, so that all are in use from then on.
func (l *load) pick() int {
	switch i := l.begun.Add(1) - 1; {
	case i < int64(l.names):
		return int(i)
	case rand.IntN(3) == 0:
		return rand.IntN(min(hot, l.names))
	}
	return rand.IntN(l.names)
}

// turn takes a lock in some way and does something with it.
func (l *load) turn(ctx context.Context, client int) {
	l.gate.RLock()
	defer l.gate.RUnlock()
	defer l.done.Add(1)
	name := l.pick()
	if rand.IntN(40) == 0 {
		l.several(ctx, l.clients[client], name)
		return
	}
	p := l.plan(client, name)
	lease, err := p.taken(ctx)
	if l.fault(err) {
		return
	}
	l.count("taken")
	p.use(context.WithoutCancel(ctx), lease)
}

// several takes two mutexes at once.
func (l *load) several(ctx context.Context, c *distlock.Client, name int) {
	ctx, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
	defer cancel()
	first, second := name/len(kinds)*len(kinds), rand.IntN(l.names)/len(kinds)*len(kinds)
	if first == second {
		return
	}
	locks, err := distlock.Multi(c.Mutex(lockName(first)), c.Mutex(lockName(second))).Lock(ctx)
	if l.fault(err) {
		return
	}
	l.count("taken together")
	l.hold()
	l.fault(locks.Unlock(context.WithoutCancel(ctx)))
}

func (l *load) hold() {
	if l.longest > 0 {
		time.Sleep(rand.N(l.longest))
	}
}

// ending is how a lease ends.
type ending int

const (
	unlocked ending = iota
	expired         // no process renews it
	overheld        // MaxHold ends it
	detached
)

// plan is how a turn goes.
type plan struct {
	l         *load
	client    int
	name      int
	way       course.Way
	reentrant bool
	ends      ending
	renewed   bool // it is held until it was renewed
}

// kinds are the kinds of names, in turn.
var kinds = [...]distlock.Mode{distlock.Exclusive, distlock.Write, distlock.Counted}

func lockName(i int) string { return fmt.Sprint("soak/", i) }

// oneIn is true once in n times.
func oneIn(n int) bool { return rand.IntN(n) == 0 }

func (l *load) plan(client, name int) *plan {
	p := &plan{l: l, client: client, name: name, way: course.Way{Mode: kinds[name%len(kinds)]}}
	add := func(o distlock.LockOption) { p.way.Options = append(p.way.Options, o) }
	if l.clients[client].Caps().QueueingOf(p.way.Mode) != driver.QueueNever && oneIn(4) {
		add(distlock.Fair())
	}
	if oneIn(4) {
		add(distlock.WithMeta(map[string]string{"job": fmt.Sprint(rand.IntN(1000))}))
	}
	if p.reentrant = p.way.Mode == distlock.Exclusive && oneIn(6); p.reentrant {
		add(distlock.Reentrant())
	}
	switch cold := name >= hot; {
	case cold && oneIn(12):
		p.ends = expired
		add(distlock.WithTTL(l.tiny))
		add(distlock.WithoutRenewal())
	case cold && oneIn(40):
		p.ends = overheld
		add(distlock.WithTTL(l.tiny))
		add(distlock.MaxHold(l.tiny / 2))
	case cold && !p.reentrant && l.clients[client].Caps().Detached && oneIn(12):
		p.ends = detached
	case cold && oneIn(40):
		p.renewed = true
		add(distlock.WithTTL(l.tiny))
	case oneIn(20):
		add(distlock.WithoutRenewal())
	}
	return p
}

// taken takes the lock: with a bound of the lock or of the context, cancelled in the middle, or with patience.
func (p *plan) taken(ctx context.Context) (*distlock.Lease, error) {
	p.way.GiveUp = time.Minute
	switch rand.IntN(4) {
	case 0:
		p.way.Options = append(p.way.Options, distlock.WaitAtMost(10*time.Millisecond+rand.N(200*time.Millisecond)))
	case 1:
		p.way.GiveUp = 10*time.Millisecond + rand.N(200*time.Millisecond)
	case 2:
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer time.AfterFunc(rand.N(5*time.Millisecond), cancel).Stop()
		return p.take(ctx)
	}
	return p.take(ctx)
}

func (p *plan) take(ctx context.Context) (*distlock.Lease, error) {
	w := p.way
	w.Try = oneIn(3)
	if w.Mode == distlock.Write && oneIn(2) {
		w.Mode = distlock.Read
	}
	return w.Take(ctx, p.l.clients[p.client], lockName(p.name))
}

// use does what is done under a lock, and ends it.
func (p *plan) use(ctx context.Context, lease *distlock.Lease) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	l := p.l
	l.hold()
	if p.reentrant && oneIn(2) {
		again, err := p.take(lease.Context())
		if !l.fault(err) {
			l.count("re-entered")
			l.fault(again.Unlock(ctx))
		}
	}
	if lease.Mode() == distlock.Write && oneIn(3) && !l.fault(lease.Downgrade(ctx)) {
		l.count("downgraded")
	}
	if oneIn(10) && p.ends == unlocked && !p.renewed && !l.fault(lease.Extend(ctx, ttl/2)) {
		l.count("extended")
	}
	if p.renewed {
		wait.Sleep(lease.Context(), l.tiny)
		l.count("renewed")
	}
	switch p.ends {
	case expired:
		l.count("left to expire")
	case overheld:
		l.count("left to MaxHold")
	case detached:
		p.detach(ctx, lease)
	default:
		l.fault(lease.Unlock(ctx))
	}
}

// detach detaches a lease, and mostly attaches it to the other client.
func (p *plan) detach(ctx context.Context, lease *distlock.Lease) {
	l := p.l
	owner, err := lease.Detach(ctx)
	if l.fault(err) {
		l.fault(lease.Unlock(ctx))
		return
	}
	l.count("detached")
	if oneIn(3) {
		return // and it expires
	}
	lease, err = l.clients[1-p.client].Attach(ctx, lockName(p.name), owner)
	if l.fault(err) {
		return
	}
	l.count("attached")
	l.hold()
	l.fault(lease.Unlock(ctx))
}
