package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/httpwire"
	"github.com/distlock/distlock/internal/wait"
)

// acquire makes one attempt, or waits for the lock.
func (c *exchange) acquire() error {
	arrived := time.Now()
	var m httpwire.Request
	if err := c.decode(&m, httpwire.MaxBody); err != nil {
		return err
	}
	r, err := c.request(m)
	if err != nil {
		return err
	}
	if m.Wait < 0 || httpwire.Duration(m.Wait) > httpwire.MaxWait {
		return invalid("wait_ms is %d: want 0 to %d; to wait longer, ask again with the same owner", m.Wait, httpwire.Down(httpwire.MaxWait))
	}
	g, err := c.obtain(r, arrived, httpwire.Duration(m.Wait))
	if err != nil {
		return err
	}
	return c.json(g)
}

// request checks what a client requests, and completes it with the news that the client wants.
func (c *exchange) request(m httpwire.Request) (driver.Request, error) {
	h, err := c.hold(m.Hold)
	if err != nil {
		return driver.Request{}, err
	}
	if err := c.may(Lock, h.Name); err != nil {
		return driver.Request{}, err
	}
	if err := c.checkTTL(h.TTL); err != nil {
		return driver.Request{}, err
	}
	size := 0
	for k, v := range m.Meta {
		size += len(k) + len(v)
	}
	if size > httpwire.MaxMeta {
		return driver.Request{}, invalid("meta has %d bytes: at most %d", size, httpwire.MaxMeta)
	}
	r := m.Driver()
	if m.Limit < 0 {
		return r, invalid("limit is %d: want at least 1", m.Limit)
	}
	if r.Fences > 1 && !r.Mode.Alone() {
		return r, invalid("fences is %d: a lock that is shared or counted gets 1", r.Fences)
	}
	return r, c.subscribe(&r, m.Revocable)
}

// obtain acquires r, and waits for that if the client wants to.
func (c *exchange) obtain(r driver.Request, arrived time.Time, maxWait time.Duration) (httpwire.Grant, error) {
	if c.s.drained.Err() != nil {
		return httpwire.Grant{}, errDraining
	}
	yield, end, err := c.s.ownerCalls.begin(c.r.Context(), r.Owner)
	if err != nil {
		return httpwire.Grant{}, err
	}
	defer end()
	if err := c.s.released.check(r.Owner); err != nil {
		return httpwire.Grant{}, err
	}
	known, held, err := c.s.quota.add(c.who.Name, r.Hold, maxWait+callTimeout, c.s.o.MaxHolds)
	if err != nil {
		return httpwire.Grant{}, err
	}
	began, g, err := c.attempt(r, maxWait > 0)
	if errors.Is(err, driver.ErrHeld) && (maxWait > 0 || r.Queue) {
		c.s.seen.Refused(r.Hold, arrived)
	}
	if maxWait > 0 && errors.Is(err, driver.ErrHeld) {
		began, g, err = c.waitFor(r, arrived.Add(maxWait), yield, err)
	}
	c.count(r.Hold, g, err, known, held)
	if err != nil && c.spent {
		c.s.seen.Released(r.Hold)
		err = driver.Spent(err) // however the wait has ended
	}
	if err != nil {
		return httpwire.Grant{}, err
	}
	c.s.seen.Granted(r, g, arrived, began)
	return httpwire.Grant{Fence: g.Fence, Fences: g.Fences, TTL: httpwire.Down(g.TTL), Waited: httpwire.Down(began.Sub(arrived))}, nil
}

// count counts what an acquire has led to. A repeated acquire shortens no hold, and not every backend shortens a place.
func (c *exchange) count(h driver.Hold, g driver.Grant, err error, known, held bool) {
	switch {
	case err == nil:
		h.TTL = g.TTL
		c.s.quota.granted(c.who.Name, h, held)
	case c.spent:
		c.s.quota.remove(h, false)
	case c.unknown:
		c.s.quota.prolong(c.who.Name, h, !held)
	case !held && c.queued && known:
		c.s.quota.prolong(c.who.Name, h, true)
	case !held && c.queued:
		c.s.quota.set(c.who.Name, h, true)
	case !known:
		c.s.quota.remove(h, false)
	}
}

// attempt makes one attempt, unless the client has gone. It returns when that began, which is after the request
// has arrived.
func (c *exchange) attempt(r driver.Request, queue bool) (began time.Time, g driver.Grant, err error) {
	if err := c.r.Context().Err(); err != nil {
		return time.Time{}, driver.Grant{}, err
	}
	r.Queue = r.Queue || queue && c.s.caps.QueueingOf(r.Mode) != driver.QueueNever
	ctx, cancel := context.WithTimeout(c.r.Context(), callTimeout)
	defer cancel()
	began = time.Now()
	g, err = c.s.backend.Acquire(ctx, r)
	c.unknown, c.spent = httpwire.KindOf(err) == httpwire.Unknown, errors.Is(err, driver.ErrSpent)
	c.queued = err != nil && !c.spent && (c.queued || r.Queue && errors.Is(err, driver.ErrHeld))
	c.s.metrics.backend("acquire", err, time.Since(began))
	return began, g, err
}

// pollTime is how long a wait relies on its watch: nothing is pushed when time alone frees a lock.
const pollTime = time.Second

// waitFor makes attempts until one is granted, until the client's maxWait or the request ends, or until the
// client makes another call for the same Owner. It returns the last refusal then. An attempt that has released its Owner
// is the last one for that: waitFor returns after a pause, and the client asks again with a fresh Owner.
func (c *exchange) waitFor(r driver.Request, until time.Time, yield <-chan struct{}, refused error) (time.Time, driver.Grant, error) {
	ctx, end, err := c.stream()
	if err != nil {
		return time.Time{}, driver.Grant{}, err
	}
	defer end()
	ctx, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	r.Queue = c.s.caps.QueueingOf(r.Mode) != driver.QueueNever
	var ready <-chan struct{}
	if !c.spent {
		armed, closeWatch := c.arm(ctx, r)
		defer closeWatch()
		ready = armed
	}
	for first := true; ; first = false {
		if !first || ready == nil { // a watch that was armed just now is followed by an attempt
			t := time.NewTimer(c.pause(ready != nil, refused, r.TTL))
			select {
			case <-ready:
			case <-t.C:
			case <-yield:
				t.Stop()
				return time.Time{}, driver.Grant{}, errYielded
			case <-ctx.Done():
				t.Stop()
				return time.Time{}, driver.Grant{}, c.waitEnded(ctx, refused)
			}
			t.Stop()
		}
		if c.spent {
			return time.Time{}, driver.Grant{}, refused
		}
		if err := c.mayStill(r.Name); err != nil {
			_ = c.backendRelease(context.WithoutCancel(ctx), r.Hold) // its place in the queue
			c.s.seen.Released(r.Hold)
			c.queued = false
			return time.Time{}, driver.Grant{}, err
		}
		began, g, err := c.attempt(r, true)
		if !errors.Is(err, driver.ErrHeld) {
			return began, g, err
		}
		refused = err
	}
}

// mayStill returns an error if the client's right to lock a name has ended while it waited.
func (c *exchange) mayStill(name string) error {
	who, err := c.s.o.Access.identify(c.r)
	if err == nil {
		c.who = who
		err = c.may(Lock, name)
	}
	return err
}

// waitEnded returns why a wait was over.
func (c *exchange) waitEnded(ctx context.Context, refused error) error {
	if errors.Is(context.Cause(ctx), driver.ErrUnsent) || c.r.Context().Err() != nil {
		return context.Cause(ctx)
	}
	return refused
}

// arm watches r if the backend can.
func (c *exchange) arm(ctx context.Context, r driver.Request) (ready <-chan struct{}, closeWatch func()) {
	w, ok := c.s.backend.(driver.Watcher)
	if !ok {
		return nil, func() {}
	}
	arming, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	armed, err := w.Watch(arming, r)
	if err != nil {
		return nil, func() {}
	}
	return armed.Ready, armed.Close
}

// pause returns for how long a waiter waits for its next attempt, which also keeps its place in the queue for a TTL.
func (c *exchange) pause(watched bool, refused error, ttl time.Duration) time.Duration {
	var held *driver.HeldError
	d := pollTime
	if errors.As(refused, &held) && held.Retry > 0 {
		d = min(d, held.Retry)
	}
	if !watched {
		d = min(d, wait.Jitter(10*max(c.s.caps.Poll, 10*time.Millisecond)))
	}
	if c.queued {
		d = min(d, ttl/5)
	}
	return max(d, time.Millisecond)
}

// watch signals when an attempt may succeed. The stream ends with the request, or when the server drains.
func (c *exchange) watch() error {
	var m httpwire.Request
	if err := c.decode(&m, httpwire.MaxBody); err != nil {
		return err
	}
	r, err := c.request(m)
	if err != nil {
		return err
	}
	w, ok := c.s.backend.(driver.Watcher)
	if !ok {
		return errNoWatch
	}
	ctx, end, err := c.stream()
	if err != nil {
		return err
	}
	defer end()
	arming, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	armed, err := w.Watch(arming, r)
	if errors.Is(err, driver.ErrSkip) {
		return errNoWatch
	}
	if err != nil {
		return err
	}
	defer armed.Close()
	e := c.events()
	return e.forward(ctx, httpwire.EventArmed, armed.Ready, func() error {
		if err := c.may(Lock, r.Name); err != nil {
			return err
		}
		return e.send(httpwire.EventReady, nil)
	})
}

var errNoWatch = fmt.Errorf("%w: the backend has no signals for this lock: poll", driver.ErrUnsupported)

// renew answers each hold in a line of its own.
func (c *exchange) renew() error {
	var m httpwire.Renewal
	if err := c.decode(&m, httpwire.MaxRenewal); err != nil {
		return err
	}
	if len(m.Holds) == 0 || len(m.Holds) > httpwire.MaxHolds {
		return invalid("%d holds: want 1 to %d", len(m.Holds), httpwire.MaxHolds)
	}
	lines := make([]httpwire.Renewed, len(m.Holds))
	var holds []driver.Hold
	var at []int // the line of each
	for i, w := range m.Holds {
		lines[i].Index = i
		h, err := c.renewal(w)
		var end func()
		if err == nil {
			end, err = c.s.ownerCalls.tryBegin(h.Owner)
		}
		if err != nil {
			lines[i].Outcome, lines[i].Detail = problemOf(err).Kind, err.Error()
			continue
		}
		defer end()
		holds, at = append(holds, h), append(at, i)
	}
	for i, err := range c.renewAll(holds) {
		lines[at[i]].Outcome = httpwire.KindOf(err)
		if err != nil {
			lines[at[i]].Detail = err.Error()
		}
	}
	return c.lines(lines)
}

// renewal checks one hold of a renewal.
func (c *exchange) renewal(w httpwire.Hold) (driver.Hold, error) {
	h, err := c.hold(w)
	if err != nil {
		return h, err
	}
	if err := c.may(Lock, h.Name); err != nil {
		return h, err
	}
	return h, c.checkTTL(h.TTL)
}

// renewAll makes one call of the backend, which shares it among its own servers.
func (c *exchange) renewAll(holds []driver.Hold) []error {
	if len(holds) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(c.r.Context(), callTimeout)
	defer cancel()
	began := time.Now()
	errs := c.s.backend.Renew(ctx, holds)
	for i, err := range errs {
		c.s.metrics.backend("renew", err, time.Since(began))
		switch httpwire.KindOf(err) {
		case httpwire.OK:
			c.s.quota.prolong(c.who.Name, holds[i], false)
			c.s.seen.Renewed(holds[i], began)
		case httpwire.Lost:
			c.s.quota.remove(holds[i], true)
			c.s.seen.Lost(holds[i])
		case httpwire.Unknown:
			c.s.quota.prolong(c.who.Name, holds[i], false)
			c.s.seen.UnknownRenewal(holds[i], err)
		}
	}
	return errs
}

// lines answers with a JSON object in each line.
func (c *exchange) lines(all []httpwire.Renewed) error {
	c.w.Header().Set("Content-Type", "application/x-ndjson")
	e := json.NewEncoder(c.w)
	for _, line := range all {
		if err := e.Encode(line); err != nil {
			return err
		}
	}
	return nil
}

// release ends a hold, or a place in the queue.
func (c *exchange) release() error {
	var m httpwire.Hold
	if err := c.decode(&m, httpwire.MaxBody); err != nil {
		return err
	}
	h, err := c.hold(m)
	if err != nil {
		return err
	}
	return c.releaseHold(h)
}

func (c *exchange) releaseHold(h driver.Hold) error {
	if err := c.may(Lock, h.Name); err != nil && c.may(Break, h.Name) != nil {
		return err
	}
	_, end, err := c.s.ownerCalls.begin(c.r.Context(), h.Owner)
	if err != nil {
		return err
	}
	defer end()
	err = c.backendRelease(c.r.Context(), h)
	if err == nil || errors.Is(err, driver.ErrLost) {
		c.s.seen.Released(h)
		c.s.released.add(h.Owner)
	}
	if err != nil {
		return err
	}
	c.w.WriteHeader(http.StatusNoContent)
	return nil
}

func (c *exchange) backendRelease(ctx context.Context, h driver.Hold) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	began := time.Now()
	err := c.s.backend.Release(ctx, h)
	c.s.metrics.backend("release", err, time.Since(began))
	if kind := httpwire.KindOf(err); kind == httpwire.OK || kind == httpwire.Lost {
		c.s.quota.remove(h, kind == httpwire.Lost)
	}
	return err
}
