package drivertest

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/lives"
)

// lab is one store, with the data of all its connections that a defect needs, and with a network
// that can be cut.
type lab struct {
	store *memlock.Store
	lives lives.Lives          // what a defect sets them to
	alter func(*lab, *patched) // makes the defect
	end   chan struct{}        // closed when the test is over

	mu      sync.Mutex
	owners  map[string]driver.Request // everything that was ever granted, by owner
	last    map[string]driver.Grant   // by name
	makers  map[string]*patched       // the connections that acquired, by owner
	notes   map[string]string
	cuts    int
	refusal bool              // the user may do nothing
	picky   bool              // names with a } are refused
	muted   map[string]bool   // names whose next signal is dropped
	signals []chan<- struct{} // of all watches
}

func newLab(alter func(*lab, *patched)) *lab {
	return &lab{
		store: memlock.NewStore(), alter: alter, end: make(chan struct{}),
		owners: map[string]driver.Request{}, last: map[string]driver.Grant{}, makers: map[string]*patched{}, notes: map[string]string{}, muted: map[string]bool{},
	}
}

// open makes a connection with the lab's defect.
func (l *lab) open(context.Context) (driver.Backend, error) {
	p := l.connect()
	if l.alter != nil {
		l.alter(l, p)
	}
	return p, nil
}

func (l *lab) harness() *Harness {
	return &Harness{Open: l.open, Refuses: l.refuses, Withdraw: l.withdraw, LoseAnswers: loseAnswers, Cut: func(b driver.Backend) func() {
		l.locked(func() { l.cuts++ })
		return b.(*patched).cut()
	}}
}

// loseAnswers loses the answers to releases.
func loseAnswers(b driver.Backend) (restore func()) {
	p, heard := b.(*patched), make(chan struct{})
	release := p.release
	p.release = func(ctx context.Context, h driver.Hold) error {
		err := release(ctx, h)
		select {
		case <-heard:
			return err
		default:
			return p.unheard(ctx, h, heard)
		}
	}
	return func() { close(heard) }
}

func (l *lab) withdraw() (restore func()) {
	l.locked(func() { l.refusal = true })
	return func() { l.locked(func() { l.refusal = false }) }
}

func (l *lab) refuses(name string) (refused bool) {
	l.locked(func() { refused = l.picky && strings.Contains(name, "}") })
	return refused
}

// try runs one check against a fresh lab, in no real time.
func try(t *testing.T, alter func(*lab, *patched), c Check) error {
	t.Helper()
	return tryWith(t, alter, c, func(*Harness) {})
}

// tryWith is try with a harness that is adjusted first.
func tryWith(t *testing.T, alter func(*lab, *patched), c Check, adjust func(*Harness)) (err error) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		l := newLab(alter)
		h := l.harness()
		adjust(h)
		err = c.Run(t.Context(), h)
		close(l.end)
		time.Sleep(time.Minute) // lets the goroutines of a defect end
	})
	return err
}

// locked runs f with the lab's mutex locked.
func (l *lab) locked(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f()
}

// patched is a connection whose calls can be replaced one by one. By default it is memlock behind a
// network.
type patched struct {
	lab  *lab
	mem  *memlock.Backend
	caps driver.Caps

	acquire func(context.Context, driver.Request) (driver.Grant, error)
	renew   func(context.Context, []driver.Hold) []error
	release func(context.Context, driver.Hold) error
	watch   func(context.Context, driver.Request) (driver.Watch, error)
	inspect func(context.Context, string) (driver.Info, error)
	list    func(context.Context, string, func(string) bool) error
	revoke  func(context.Context, driver.Hold) error
	all     func(context.Context, []driver.Request) ([]driver.Grant, error)
	close   func() error

	deaf    bool                                                                // it does not signal after it was cut off
	brittle bool                                                                // it does not recover from being cut off
	lands   bool                                                                // attempts that have no answer are made
	denied  func(call string) error                                             // what it answers while the user may do nothing
	unheard func(ctx context.Context, h driver.Hold, heard chan struct{}) error // what a release says whose answer was lost
	broken  error                                                               // its error for a broken network; nil: the context's error

	mu       sync.Mutex
	unsent   int // releases that did not arrive
	isCut    bool
	restored chan struct{} // closed when the network is there again
}

func (l *lab) connect() *patched {
	mem := l.store.Connect()
	p := &patched{lab: l, mem: mem, caps: mem.Caps(), restored: make(chan struct{})}
	p.denied = func(string) error { return driver.Unsent(errors.New("access denied")) }
	p.unheard = func(context.Context, driver.Hold, chan struct{}) error { return errors.New("connection reset") }
	p.acquire, p.release, p.inspect, p.list, p.close = mem.Acquire, mem.Release, mem.Inspect, mem.List, mem.Close
	p.renew, p.watch, p.revoke = mem.Renew, p.watchThroughCuts, mem.Revoke
	return p
}

// cut loses the network of one connection.
func (p *patched) cut() (restore func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.isCut = true
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.isCut = p.brittle
		close(p.restored)
		p.restored = make(chan struct{})
	}
}

// network fails when ctx ends before the network is there.
func (p *patched) network(ctx context.Context) error {
	for {
		p.mu.Lock()
		down, up := p.isCut, p.restored
		p.mu.Unlock()
		if !down {
			return nil
		}
		select {
		case <-up:
		case <-ctx.Done():
			return cmp.Or(p.broken, ctx.Err())
		}
	}
}

// watchThroughCuts receives nothing during a cut and signals once after it.
func (p *patched) watchThroughCuts(ctx context.Context, r driver.Request) (driver.Watch, error) {
	w, err := p.mem.Watch(ctx, r)
	if err != nil {
		return w, err
	}
	ready, end := make(chan struct{}, 1), make(chan struct{})
	var done sync.WaitGroup
	done.Go(func() {
		for p.receives(r.Name, w.Ready, end) {
			select {
			case ready <- struct{}{}:
			default:
			}
		}
	})
	return driver.Watch{Ready: ready, Close: func() { close(end); w.Close(); done.Wait() }}, nil
}

// receives waits for a signal that gets through. It returns false at the end.
func (p *patched) receives(name string, from, end <-chan struct{}) bool {
	for {
		p.mu.Lock()
		up := p.restored
		p.mu.Unlock()
		select {
		case <-end:
			return false
		case <-from:
			if p.audible(name) {
				return true
			}
		case <-up:
			if !p.deaf {
				return true
			}
		}
	}
}

func (p *patched) audible(name string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lab.mu.Lock()
	defer p.lab.mu.Unlock()
	muted := p.lab.muted[name]
	delete(p.lab.muted, name)
	return !p.isCut && !muted
}

// mute drops the next signal for a name.
func (p *patched) mute(name string) { p.lab.locked(func() { p.lab.muted[name] = true }) }

func (p *patched) Caps() driver.Caps { return p.caps }

// access fails while the user may do nothing.
func (p *patched) access(call string) (refused bool, err error) {
	p.lab.locked(func() { refused = p.lab.refusal })
	if refused {
		err = p.denied(call)
	}
	return refused, err
}

func (p *patched) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if refused, err := p.access("Acquire"); refused {
		return driver.Grant{}, err
	}
	if err := p.network(ctx); err != nil {
		if p.lands {
			p.acquire(context.Background(), r)
		}
		return driver.Grant{}, err
	}
	return p.acquire(ctx, r)
}

func (p *patched) Renew(ctx context.Context, holds []driver.Hold) []error {
	if refused, err := p.access("Renew"); refused {
		return slices.Repeat([]error{err}, len(holds))
	}
	// After a failure ctx has ended. To a replaced Renew that looks like a failed network.
	p.network(ctx)
	return p.renew(ctx, holds)
}

func (p *patched) Release(ctx context.Context, h driver.Hold) error {
	if refused, err := p.access("Release"); refused {
		return err
	}
	if err := p.network(ctx); err != nil {
		p.unsent++
		return err
	}
	return p.release(ctx, h)
}

func (p *patched) Watch(ctx context.Context, r driver.Request) (driver.Watch, error) {
	if refused, err := p.access("Watch"); refused {
		return driver.Watch{}, err
	}
	if err := p.network(ctx); err != nil {
		return driver.Watch{}, err
	}
	return p.watch(ctx, r)
}

func (p *patched) Inspect(ctx context.Context, name string) (driver.Info, error) {
	if err := p.network(ctx); err != nil {
		return driver.Info{}, err
	}
	return p.inspect(ctx, name)
}

func (p *patched) List(ctx context.Context, prefix string, yield func(string) bool) error {
	if err := p.network(ctx); err != nil {
		return err
	}
	return p.list(ctx, prefix, yield)
}

func (p *patched) Revoke(ctx context.Context, h driver.Hold) error {
	if err := p.network(ctx); err != nil {
		return err
	}
	return p.revoke(ctx, h)
}

func (p *patched) Close() error { return p.close() }
