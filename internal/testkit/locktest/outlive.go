package locktest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
)

// Programs are two programs on one store. What happens to the store for a while ends none of what they do: one holds a
// lock, waits for another, and for a third that it will give up, and is a candidate. Both have locks to unlock.
type Programs struct {
	t                   *testing.T
	one, other          *distlock.Client
	held, freed, permit *distlock.Lease
	blocking            []*distlock.Lease // what is waited for
	inVain              bool              // the unlocks came when they could not be done
	ended               chan error        // of the waiter, and of the candidate
	gaveUp              chan error
	giveUp              context.CancelFunc
}

var errElected = errors.New("elected")

// Outlive runs the programs, each with a backend of its own, and wants them to go on after a change. keeps says that no hold is
// lost by it.
func Outlive(t *testing.T, keeps bool, open func() driver.Backend, change func(p *Programs)) {
	t.Helper()
	waits := make(chan struct{}, 100)
	opts := &distlock.Options{TTL: time.Minute, Observer: &distlock.Observer{Waiting: func(distlock.Event) { waits <- struct{}{} }}}
	p := &Programs{t: t, ended: make(chan error, 2), gaveUp: make(chan error, 1)}
	for _, c := range []**distlock.Client{&p.one, &p.other} {
		*c = must.Get(distlock.New(open(), opts))(t)
		t.Cleanup(func() { (*c).Close() })
	}
	p.begin()
	for range 3 {
		<-waits
	}
	change(p)
	if keeps {
		if len(p.ended) > 0 {
			t.Error("a waiter or a candidate has ended")
		}
		Eventually(t, "the hold is renewed", func() bool { return p.held.Extend(t.Context(), time.Minute) == nil || p.held.Err() != nil })
	}
	p.goOn()
	if err := unlock(t, p.held); keeps {
		expect.OK(t, err, "the holder")
	}
}

func (p *Programs) lock(c *distlock.Client, name string) *distlock.Lease {
	p.t.Helper()
	return must.Get(c.Mutex(name).Lock(Soon(p.t)))(p.t)
}

func (p *Programs) begin() {
	p.t.Helper()
	p.held, p.freed = p.lock(p.one, "held"), p.lock(p.one, "freed")
	for _, name := range []string{"busy", "leader", "contended"} {
		p.blocking = append(p.blocking, p.lock(p.other, name))
	}
	if p.one.Caps().Modes.Has(driver.Counted) {
		p.permit = must.Get(p.one.Semaphore("permits", 1).Acquire(Soon(p.t)))(p.t)
	}
	go func() {
		l, err := p.one.Mutex("busy").Lock(p.t.Context())
		if err == nil {
			err = unlock(p.t, l)
		}
		p.ended <- err
	}()
	go func() {
		err := p.one.Election("leader").Lead(p.t.Context(), func(context.Context) error { return errElected })
		if errors.Is(err, errElected) {
			err = nil
		}
		p.ended <- err
	}()
	var ctx context.Context
	ctx, p.giveUp = context.WithCancel(p.t.Context())
	p.t.Cleanup(p.giveUp)
	go func() {
		_, err := p.one.Mutex("contended").Lock(ctx)
		p.gaveUp <- err
	}()
}

// unlock unlocks a lock. On a busy machine there may be no answer in time: then the release goes on in the background.
func unlock(t *testing.T, l *distlock.Lease) error {
	err := l.Unlock(t.Context())
	if errors.Is(err, distlock.ErrUnavailable) {
		t.Log(err)
		return nil
	}
	return err
}

// UnlockInVain unlocks while that can't be done, and lets a waiter give up.
func (p *Programs) UnlockInVain() {
	p.t.Helper()
	p.inVain = true
	ctx, cancel := context.WithTimeout(p.t.Context(), time.Second)
	defer cancel()
	for what, l := range map[string]*distlock.Lease{"unlock": p.freed, "unlock of a permit": p.permit} {
		if l == nil {
			continue
		}
		if err := l.Unlock(ctx); err == nil || errors.Is(err, distlock.ErrInvalid) || errors.Is(err, distlock.ErrLost) {
			p.t.Errorf("%s: %v; want an unknown outcome", what, err)
		}
	}
	p.giveUp()
	expect.Be(p.t, <-p.gaveUp, context.Canceled, "a waiter that gives up")
}

// goOn lets everybody have what it waits for. What was unlocked, or given up, blocks nobody.
func (p *Programs) goOn() {
	p.t.Helper()
	p.giveUp()
	if !p.inVain {
		p.blocking = append(p.blocking, p.freed)
	}
	for _, l := range p.blocking {
		Eventually(p.t, "the lock is unlocked", func() bool { return l.Unlock(p.t.Context()) == nil || l.Err() != nil })
	}
	for range cap(p.ended) {
		select {
		case err := <-p.ended:
			expect.OK(p.t, err, "a waiter, or a candidate")
		case <-time.After(Patience):
			p.t.Fatal("a waiter, or a candidate, still waits")
		}
	}
	for _, name := range []string{"freed", "busy", "leader", "contended", "new"} {
		expect.OK(p.t, unlock(p.t, p.lock(p.other, name)), name)
	}
	if p.permit != nil && p.inVain {
		must.Get(p.other.Semaphore("permits", 1).Acquire(Soon(p.t)))(p.t)
	}
	expect.OK(p.t, unlock(p.t, p.lock(p.one, "newer")), "a new lock")
}
