package redislock

import (
	"cmp"
	"context"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/distlock/distlock/backend/redislock/internal/redisconn"
)

// ferry takes the commands of many callers to the server together: those that come
// while it is away wait, and go with the next trip, in their order. It is for what must
// have a connection by itself, or keeps one busy: WATCH and WAIT.
type ferry struct {
	send  func(ctx context.Context, commands [][]string) []redisconn.Answer
	kept  func() bool // the next trip goes on the connection of the last; nil: nobody knows
	rest  func()      // nobody waits; may be nil
	back  func()      // the same, without the mutex
	doubt func()      // tells that the server does not answer; may be nil
	first func()      // before the first trip; may be nil
	wait  []string    // the command that waits for replicas; nil if nobody asks them

	mu      sync.Mutex
	waiting []*load
	away    bool
	overdue redisconn.Overdue

	// Those below are for who makes the trips.
	comparing []*load
	watched   []*load
}

// ferries are one for each slot: a cluster's slots are in several places, and there a
// transaction has keys of one slot only. One that does not come back is left, as a
// pipeline's connection is: there are two for a slot at most.
type ferries struct {
	build func(key string) *ferry

	mu     sync.Mutex
	bySlot map[int]*ferry
	left   map[int]*ferry // not back yet
}

// of is the ferry of a slot, in which key lies.
func (f *ferries) of(slot int, key string) *ferry {
	f.mu.Lock()
	defer f.mu.Unlock()
	found := f.bySlot[slot]
	if found == nil {
		found = f.new(slot, key)
	}
	return found
}

// new is the ferry that is used from now on. The mutex is held.
func (f *ferries) new(slot int, key string) *ferry {
	made := f.build(key)
	made.overdue.Limit = redisconn.DefaultTimeout
	made.overdue.Fire = func() { f.leave(slot, key, made) }
	made.back = func() { f.back(slot, key, made) }
	if f.bySlot == nil {
		f.bySlot, f.left = map[int]*ferry{}, map[int]*ferry{}
	}
	f.bySlot[slot] = made
	return made
}

// leave gives those who wait for a ferry that is overdue to another one.
func (f *ferries) leave(slot int, key string, late *ferry) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !late.isOverdue() {
		return
	}
	if f.bySlot[slot] == late {
		if f.left[slot] != nil {
			return // see back
		}
		f.left[slot] = late
		f.new(slot, key).first = late.doubt
	}
	f.bySlot[slot].add(context.Background(), late.handOver()...)
}

// back: a ferry has nothing more to take. One that was left makes room for another one.
func (f *ferries) back(slot int, key string, came *ferry) {
	f.mu.Lock()
	if f.left[slot] != came {
		f.mu.Unlock()
		return
	}
	delete(f.left, slot)
	now := f.bySlot[slot]
	f.mu.Unlock()
	f.leave(slot, key, now)
}

// load is what one caller sends: commands, or guards.
type load struct {
	commands [][]string
	guards   []guard
	acked    bool // the replicas are asked

	answers []redisconn.Answer
	acks    redisconn.Answer
	err     error // of the guards

	gone  atomic.Bool // the caller has given up
	alone bool        // it is compared by itself
	tries int
	done  chan struct{}
}

// do returns when l has its answers, or with ctx's error: then it may still be sent, if
// that has begun, but nothing that is given to do later is sent before it.
func (f *ferry) do(ctx context.Context, l *load) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	l.done = make(chan struct{})
	f.add(ctx, l)
	select {
	case <-l.done:
		return nil
	case <-ctx.Done():
		l.gone.Store(true)
		return &redisconn.UnansweredError{Err: ctx.Err(), Done: l.done}
	}
}

func (f *ferry) add(ctx context.Context, loads ...*load) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.waiting = append(f.waiting, loads...)
	switch {
	case len(f.waiting) == 0:
	case f.away:
		f.overdue.Behind(ctx)
	default:
		f.away = true
		f.overdue.Begin(false)
		go f.cross()
	}
}

func (f *ferry) isOverdue() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.away && f.overdue.Due()
}

// handOver gives away those who wait.
func (f *ferry) handOver() []*load {
	f.mu.Lock()
	defer f.mu.Unlock()
	loads := f.waiting
	f.waiting = nil
	f.overdue.Begin(false)
	return loads
}

// cross makes trips as long as there is something to take.
func (f *ferry) cross() {
	if f.first != nil {
		f.first()
		f.first = nil
	}
	for {
		loads, more := f.next()
		if !more {
			f.back()
			return
		}
		t := trip{}
		f.finishGuards(&t)
		for _, l := range loads {
			if l.guards != nil {
				f.comparing = append(f.comparing, l)
				continue
			}
			t.add(l, l.commands, func(got []redisconn.Answer) { l.answers = got })
			t.end(l)
		}
		f.askReplicas(&t)
		f.beginGuards(&t)
		t.make(f.send)
		if f.kept == nil || !f.kept() {
			f.loseGuards(cmp.Or(t.broken, errGivenUp))
		}
		for _, l := range t.ended {
			close(l.done)
		}
		// Those who were answered just now may want more: let them join.
		runtime.Gosched()
	}
}

// next are those who wait, without those who no longer do.
func (f *ferry) next() (loads []*load, more bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := min(len(f.waiting), redisconn.MaxPipeline)
	loads, f.waiting = f.waiting[:n:n], f.waiting[n:]
	f.overdue.Begin(len(f.waiting) > 0)
	loads = slices.DeleteFunc(loads, func(l *load) bool {
		gone := l.gone.Load()
		if gone {
			close(l.done)
		}
		return gone
	})
	if len(loads) > 0 || len(f.waiting) > 0 || len(f.comparing) > 0 || f.watched != nil {
		return loads, true
	}
	if f.rest != nil {
		f.rest()
	}
	f.away, f.waiting = false, nil
	return nil, false
}

// askReplicas adds one question for all.
func (f *ferry) askReplicas(t *trip) {
	asked := slices.DeleteFunc(slices.Clone(t.loads), func(l *load) bool { return !l.acked })
	if len(asked) == 0 {
		return
	}
	t.add(nil, [][]string{f.wait}, func(got []redisconn.Answer) {
		for _, l := range asked {
			l.acks = got[0]
		}
	})
}

// trip is what is sent together.
type trip struct {
	commands [][]string
	parts    []part
	loads    []*load // whose writes are among the commands
	ended    []*load // who have all they asked for when it is over
	broken   error   // not all was answered
}

type part struct {
	n    int
	read func([]redisconn.Answer)
}

func (t *trip) add(l *load, commands [][]string, read func([]redisconn.Answer)) {
	t.commands = append(t.commands, commands...)
	t.parts = append(t.parts, part{len(commands), read})
	if l != nil {
		t.loads = append(t.loads, l)
	}
}

func (t *trip) end(l *load) { t.ended = append(t.ended, l) }

func (t *trip) make(send func(context.Context, [][]string) []redisconn.Answer) {
	if len(t.commands) == 0 {
		return
	}
	// Those who wait give up by themselves; the connection has a timeout of its own.
	got := send(context.Background(), t.commands)
	t.broken = redisconn.TransportError(got)
	for _, p := range t.parts {
		p.read(got[:p.n])
		got = got[p.n:]
	}
}
