package drivertest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/distlock/distlock/driver"
)

// conn is one of a scene's connections. Its methods make a call and check the answer. They do
// nothing once the scene is over. Their last argument is the rule that a wrong answer breaks.
type conn struct {
	*scene
	driver.Backend
	label  string
	closed bool
	due    time.Time // a wrong answer after that may be the machine's fault; zero: never
}

// within returns c for calls that rely on a life which was anchored at since. A wrong answer
// after the end of that life breaks no promise: the check came too late to tell.
func (c *conn) within(since time.Time, life time.Duration) *conn {
	limited := *c
	if due := since.Add(life); c.due.IsZero() || due.Before(c.due) {
		limited.due = due
	}
	return &limited
}

// inTurn is within for calls that rely on the turn of the first in the queue, which began after since.
func (c *conn) inTurn(since time.Time) *conn { return c.within(since, driver.TurnLife) }

// broke is scene.broke, unless the check was too slow.
func (c *conn) broke(format string, args ...any) {
	if !c.due.IsZero() && !time.Now().Before(c.due) {
		c.fail(errSlow)
		return
	}
	c.scene.broke(format, args...)
}

// want breaks the promise unless ok.
func (c *conn) want(ok bool, format string, args ...any) {
	if !ok {
		c.broke(format, args...)
	}
}

func (c *conn) call(name string) (end func()) {
	return c.activity.begin(name + " on connection " + c.label)
}

// acquire makes an attempt and remembers what it may have left in the store.
func (c *conn) acquire(r driver.Request) (driver.Grant, error) {
	defer c.call("Acquire")()
	began := time.Now()
	g, err := c.Acquire(c.ctx, r)
	err = c.late(began, err)
	if err == nil || r.Queue || !errors.Is(err, driver.ErrHeld) && !driver.Final(err) {
		c.remember(r.Hold)
	}
	return g, err
}

// late adds errNoAnswer to the error of a call that had no answer, under Run or for long.
func (c *conn) late(began time.Time, err error) error {
	if isUnknown(err) && c.ctx.Err() == nil && (c.extra > 0 || time.Since(began) > slowCall) {
		return fmt.Errorf("%w: %w", errNoAnswer, err)
	}
	return err
}

// mustAcquire must be granted. A session can end during an attempt that takes long for its TTL.
func (c *conn) mustAcquire(r driver.Request, rule string) driver.Grant {
	if c.over() {
		return driver.Grant{}
	}
	c = c.within(time.Now(), r.TTL/2)
	g, err := c.acquire(r)
	if err != nil {
		c.broke("%s: Acquire on connection %s answered %w; want a grant", rule, c.label, answer(err))
		return g
	}
	c.judge(r, g)
	return g
}

// hold takes a free lock, and returns the request.
func (c *conn) hold(r driver.Request) driver.Request { return c.holdBy(r, "a free lock is granted") }

func (c *conn) holdBy(r driver.Request, rule string) driver.Request {
	c.mustAcquire(r, rule)
	return r
}

// judge checks every grant's fences and TTL.
func (c *conn) judge(r driver.Request, g driver.Grant) {
	if c.caps.Fence {
		c.want(g.Fences >= 1 && g.Fences <= max(r.Fences, 1), "a grant has at least 1 fence and at most those asked for: got %d, asked for %d", g.Fences, r.Fences)
		c.want(g.Fence > 0 && g.Last() < 1<<63, "a fence is above 0 and below 1<<63: got %d to %d", g.Fence, g.Last())
	}
	c.want(g.TTL >= r.TTL || c.caps.Session, "a TTL is never rounded down: got a grant of %v, asked for %v", g.TTL, r.TTL)
}

// refused must be refused with ErrHeld.
func (c *conn) refused(r driver.Request, rule string) *driver.HeldError {
	if c.over() {
		return &driver.HeldError{}
	}
	g, err := c.acquire(r)
	return c.heldError(g, err, rule)
}

func (c *conn) heldError(g driver.Grant, err error, rule string) *driver.HeldError {
	var held *driver.HeldError
	ok := errors.As(err, &held)
	switch {
	case err == nil:
		c.broke("%s: Acquire on connection %s was granted fence %d; want ErrHeld", rule, c.label, g.Fence)
	case !errors.Is(err, driver.ErrHeld):
		c.broke("%s: Acquire on connection %s answered %w; want ErrHeld", rule, c.label, answer(err))
	case !ok:
		c.broke("a refusal is a *driver.HeldError: got %T", err)
	default:
		return held
	}
	return &driver.HeldError{}
}

// shutOut must be refused as long as a hold may be relied on that was anchored at since.
func (c *conn) shutOut(r driver.Request, since time.Time, life time.Duration, rule string) *driver.HeldError {
	return c.within(since, life).refused(r, rule)
}

// fails must answer with an error of this kind.
func (c *conn) fails(r driver.Request, kind error, rule string) {
	if c.over() {
		return
	}
	_, err := c.acquire(r)
	c.want(errors.Is(err, kind), "%s: Acquire on connection %s answered %w; want %s", rule, c.label, answer(err), nameOf(kind))
}

// eventually must be granted, at the latest Slack after due.
func (c *conn) eventually(r driver.Request, due time.Duration, rule string) driver.Grant {
	began := time.Now()
	for !c.over() {
		g, err := c.acquire(r)
		waited := time.Since(began)
		switch {
		case err == nil:
			c.judge(r, g)
			return g
		case !errors.Is(err, driver.ErrHeld):
			c.heldError(g, err, rule)
		case waited > due+c.Slack:
			c.broke("%s: Acquire on connection %s is still refused after %v (%w)", rule, c.label, waited.Round(time.Millisecond), err)
		}
		c.sleep(max(c.pause(), (waited-due)/10))
	}
	return driver.Grant{}
}

// wait waits for r as package distlock does: attempts, and signals between them.
func (c *conn) wait(r driver.Request) {
	ready := make(<-chan struct{})
	if w, ok := c.Backend.(driver.Watcher); ok && !c.over() {
		watch, err := w.Watch(c.ctx, r)
		if err == nil {
			defer watch.Close()
			ready = watch.Ready
		}
		c.remember(r.Hold)
		// A busy machine may not confirm a watch in the backend's time; then the attempts do without, as the core's.
		c.want(err == nil || errors.Is(err, driver.ErrSkip) || isUnknown(err), "Watch on connection %s answered %w; want success", c.label, answer(err))
	}
	for !c.over() {
		g, err := c.acquire(r)
		if err == nil {
			return
		}
		c.heldError(g, err, "an attempt is granted or refused")
		select {
		case <-ready:
		case <-time.After(max(c.pause(), cmp.Or(c.caps.Poll, c.pause()))):
		case <-c.ctx.Done():
		}
	}
}

// renew must answer with an error of this kind; nil: success.
func (c *conn) renew(h driver.Hold, kind error, rule string) {
	if c.over() {
		return
	}
	for _, err := range c.renewAll([]driver.Hold{h}, rule) {
		c.want(errors.Is(err, kind), "%s: Renew on connection %s answered %w; want %s", rule, c.label, answer(err), nameOf(kind))
	}
}

// renewAll must answer each.
func (c *conn) renewAll(holds []driver.Hold, rule string) []error {
	if c.over() {
		return nil
	}
	defer c.call("Renew")()
	began := time.Now()
	errs := slices.Clone(c.Renew(c.ctx, holds))
	for i, err := range errs {
		errs[i] = c.late(began, err)
	}
	if len(errs) != len(holds) {
		c.broke("%s: Renew answers each hold in its slice: got %d answers for %d holds", rule, len(errs), len(holds))
		return nil
	}
	return errs
}

// free must answer with an error of this kind; nil: success.
func (c *conn) free(h driver.Hold, kind error, rule string) {
	if c.over() {
		return
	}
	defer c.call("Release")()
	// Release may rely on these fields only.
	began := time.Now()
	err := c.late(began, c.Release(c.ctx, driver.Hold{Name: h.Name, Owner: h.Owner, Mode: h.Mode}))
	if err == nil {
		c.forget(h.Owner)
	}
	c.want(errors.Is(err, kind), "%s: Release on connection %s answered %w; want %s", rule, c.label, answer(err), nameOf(kind))
}

// close must succeed.
func (c *conn) close() {
	if c.over() {
		return
	}
	defer c.call("Close")()
	c.closed = true
	if err := c.Close(); err != nil {
		c.broke("Close ends the connection: it answered %w", answer(err))
	}
}

// inspect describes a name, or ends the scene if the backend can't.
func (c *conn) inspect(name string) driver.Info {
	i, ok := optional[driver.Inspector](c)
	if !ok {
		return driver.Info{}
	}
	defer c.call("Inspect")()
	began := time.Now()
	info, err := i.Inspect(c.ctx, name)
	err = c.late(began, err)
	if c.wantClaimed(err, "Inspect"); err == nil {
		c.want(info.Name == name, "Inspect describes the name that it was asked for: got %q, want %q", info.Name, name)
	}
	return info
}

// optional returns an optional part of the backend. Without it, the scene ends.
func optional[T any](c *conn) (part T, ok bool) {
	if part, ok = c.Backend.(T); !ok {
		c.fail(ErrNotClaimed)
	}
	return part, ok && !c.over()
}

// eachOptional makes all the optional calls that the backend has.
func (c *conn) eachOptional(ctx context.Context, r driver.Request, check func(call string, err error)) {
	try := func(name string, f func() error) {
		defer c.call(name)()
		check(name, f())
	}
	if w, ok := c.Backend.(driver.Watcher); ok {
		try("Watch", func() error { return watchBriefly(ctx, w, r) })
	}
	if i, ok := c.Backend.(driver.Inspector); ok {
		try("Inspect", func() error { _, err := i.Inspect(ctx, r.Name); return err })
		try("List", func() error { return i.List(ctx, r.Name, func(string) bool { return true }) })
	}
	if v, ok := c.Backend.(driver.Revoker); ok {
		try("Revoke", func() error { return v.Revoke(ctx, r.Hold) })
	}
}

func watchBriefly(ctx context.Context, w driver.Watcher, r driver.Request) error {
	watch, err := w.Watch(ctx, r)
	if err == nil {
		watch.Close()
	}
	return err
}

// wantClaimed ends the scene if an optional call failed, or is left out.
func (c *conn) wantClaimed(err error, call string) {
	switch {
	case errors.Is(err, driver.ErrSkip):
		c.fail(ErrNotClaimed)
	case err != nil:
		c.broke("%s on connection %s answered %w; want success", call, c.label, answer(err))
	}
}

// fallSilent makes the connection behave as if its process had died. A session ends.
func (c *conn) fallSilent() {
	if c.caps.Session {
		c.close()
	}
}

// seen returns the one hold on r's lock, as Inspect reports it.
func (c *conn) seen(r driver.Request) driver.Hold {
	info := c.inspect(r.Name)
	if len(info.Holders) != 1 {
		c.want(c.over(), "Inspect shows the holders: got %d holders, want 1", len(info.Holders))
		return r.Hold
	}
	return driver.Hold{Name: info.Name, Owner: info.Holders[0].Owner, Mode: info.Holders[0].Mode}
}

func tryOnce(c *conn, r driver.Request) (driver.Grant, bool) {
	g, err := c.acquire(r)
	if err != nil {
		if !errors.Is(err, driver.ErrHeld) {
			c.heldError(g, err, "an attempt is granted or refused")
		}
		c.sleep(c.pause())
	}
	return g, err == nil
}

// armedWatch is an armed watch of a scene; nil Ready if the scene is over.
type armedWatch struct {
	driver.Watch
	c *conn
}

// watch arms a watch for r, or ends the scene if the backend can't.
func (c *conn) watch(r driver.Request) armedWatch { return c.watchWith(c.ctx, r) }

func (c *conn) watchWith(ctx context.Context, r driver.Request) armedWatch {
	w, ok := optional[driver.Watcher](c)
	if !ok {
		return armedWatch{c: c}
	}
	defer c.call("Watch")()
	armed, err := w.Watch(ctx, r)
	// The core repeats a call without an answer, too; a busy machine may give none in time.
	for start := time.Now(); isUnknown(err) && ctx.Err() == nil && time.Since(start) < c.Slack; {
		time.Sleep(10 * time.Millisecond)
		armed, err = w.Watch(ctx, r)
	}
	if c.wantClaimed(err, "Watch"); err != nil {
		return armedWatch{c: c}
	}
	c.remember(r.Hold)
	armed.Close = sync.OnceFunc(armed.Close)
	watch := armedWatch{armed, c}
	c.mu.Lock()
	c.watches = append(c.watches, watch)
	c.mu.Unlock()
	return watch
}

// wantSignal must be signalled in time.
func (w armedWatch) wantSignal(rule string) {
	if w.c.over() {
		return
	}
	select {
	case _, open := <-w.Ready:
		w.c.want(open, "Ready is not closed")
	case <-time.After(w.c.Slack):
		w.c.broke("%s: no signal on connection %s within %v", rule, w.c.label, w.c.Slack)
	case <-w.c.ctx.Done():
		w.c.broke("%s: no signal on connection %s until the check timed out", rule, w.c.label)
	}
}

// isTold makes r wait. If the refusal says Signaled, r must be granted behind what happens, tried again only as that allows.
func (c *conn) isTold(r driver.Request, happen func()) {
	w := c.watch(r)
	held := c.refused(r, "a lock has one holder at a time")
	w.drain()
	happen()
	for late := time.After(c.TTL + c.Slack); held.Signaled && !c.over(); {
		select {
		case <-w.Ready:
		case <-time.After(cmp.Or(held.Retry, c.Timeout)):
		case <-late:
			c.broke("a refusal that says Signaled is followed by a signal: there was none on connection %s, and HeldError.Retry was %v", c.label, held.Retry)
		}
		g, err := c.acquire(r)
		if err == nil {
			return
		}
		held = c.heldError(g, err, "an attempt is granted or refused")
	}
}

// drain drops a pending signal, and reports whether there was one.
func (w armedWatch) drain() bool {
	select {
	case <-w.Ready:
		return true
	default:
		return false
	}
}

// end closes the watch before the scene's end does.
func (w armedWatch) end() {
	if w.Close != nil {
		defer w.c.call("Watch.Close")()
		w.Close()
	}
}

// giveUp releases what r's owner may hold, as the core does after each wait without success.
func (c *conn) giveUp(r driver.Request) {
	if !c.over() {
		defer c.call("Release")()
		c.Release(c.ctx, r.Hold)
	}
}

// revoke must answer with an error of this kind; nil: success.
func (c *conn) revoke(h driver.Hold, kind error, rule string) {
	if c.over() {
		return
	}
	err := c.ask(h)
	c.want(errors.Is(err, kind), "%s: Revoke on connection %s answered %w; want %s", rule, c.label, answer(err), nameOf(kind))
}

// revokeSilent must succeed, or report that this holder is not revocable.
func (c *conn) revokeSilent(h driver.Hold, who string) {
	if c.over() {
		return
	}
	err := c.ask(h)
	c.want(err == nil || errors.Is(err, driver.ErrUnsupported), "%s is revoked in vain: Revoke on connection %s answered %w; want success or ErrUnsupported", who, c.label, answer(err))
}

// ask calls Revoke with only those fields that it may rely on.
func (c *conn) ask(h driver.Hold) error {
	r, ok := c.Backend.(driver.Revoker)
	if !ok {
		return driver.ErrUnsupported
	}
	defer c.call("Revoke")()
	began := time.Now()
	return c.late(began, r.Revoke(c.ctx, driver.Hold{Name: h.Name, Owner: h.Owner, Mode: h.Mode}))
}
