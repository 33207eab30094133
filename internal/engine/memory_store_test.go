package engine

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/distlock/distlock/driver"
)

// store is the simplest store: a map, whose changes are what Change.Apply says.
type store struct {
	mu    sync.Mutex
	kept  map[string]Kept
	conns map[*conn]struct{}
	clock func() int64
}

func newStore() *store {
	return &store{kept: map[string]Kept{}, conns: map[*conn]struct{}{}, clock: func() int64 { return time.Now().UnixMicro() }}
}

// conn is a connection to a store. It implements Store.
type conn struct {
	*store
	address string
	waiter  Waiter // who listened last
	heard   func(end string)
	silent  bool // it can't listen
	closed  bool

	reads, swaps int
	tell         func(now int64) int64                        // the clock as it is told
	before       func(changes []Change) error                 // what a Swap does first
	after        func(changes []Change, list []Outcome) error // what it does then
}

func (s *store) connect() *conn { return &conn{store: s, tell: func(now int64) int64 { return now }} }

func (s *store) open() *Backend { return New(s.connect(), Options{Package: "engine", Name: "memory"}) }

func (c *conn) usable(ctx context.Context) error {
	if c.closed {
		return driver.ErrClosed
	}
	return ctx.Err()
}

func (c *conn) Read(ctx context.Context, names []string) (list []Seen, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reads++
	now := c.clock()
	for _, name := range names {
		k := c.kept[name]
		list = append(list, Seen{Version: k.Version, Text: k.Text, Void: k.Void, Now: c.tell(now)})
	}
	return list, c.usable(ctx)
}

func (c *conn) Swap(ctx context.Context, changes []Change) []Outcome {
	if c.before != nil {
		if err := c.before(changes); err != nil {
			return slices.Repeat([]Outcome{{Err: err}}, len(changes))
		}
	}
	list := c.apply(ctx, changes)
	if c.after != nil {
		if err := c.after(changes, list); err != nil {
			return slices.Repeat([]Outcome{{Err: err}}, len(changes))
		}
	}
	return list
}

func (c *conn) apply(ctx context.Context, changes []Change) (list []Outcome) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.swaps++
	for i := range changes {
		ch := &changes[i]
		if err := c.usable(ctx); err != nil {
			list = append(list, Outcome{Err: err})
			continue
		}
		now, was := c.clock(), c.kept[ch.Name]
		is, done := ch.Apply(was, now)
		out := Outcome{Done: done, Other: done && ch.Ahead != Whole && was.Version != ch.Version, Seen: Seen{Version: is.Version, Void: is.Void, Now: c.tell(now)}}
		if done {
			c.kept[ch.Name] = is
			c.wake(ch.Wake)
		}
		if !done || out.Other {
			out.Seen.Text = is.Text
		}
		list = append(list, out)
	}
	return list
}

func (c *conn) Wake(_ context.Context, list []Wake) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wake(list)
}

func (s *store) wake(list []Wake) {
	for _, w := range list {
		for c := range s.conns {
			if c.address == w.Address {
				c.heard(EndOf(w.Owner))
			}
		}
	}
}

func (c *conn) Names(_ context.Context, prefix, after string, limit int) (names []string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.clock()
	for name, k := range c.kept {
		if strings.HasPrefix(name, prefix) && name > after && k.Until > now {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names[:min(len(names), limit)], nil
}

func (c *conn) Listen(_ context.Context, w Waiter, heard func(end string)) (stop func(), err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiter = w
	if c.silent || !w.Queue {
		return nil, driver.ErrSkip
	}
	c.address, c.heard = w.Address, heard
	c.conns[c] = struct{}{}
	return func() {}, nil
}

func (c *conn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	delete(c.conns, c)
	return nil
}
