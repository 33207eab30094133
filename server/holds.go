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

// acquire answers with a grant.
func (ex *exchange) acquire() error {
	arrived := time.Now()
	var m httpwire.Request
	if err := ex.decode(&m, httpwire.MaxBody); err != nil {
		return err
	}
	g, err := ex.grant(m, arrived)
	if err != nil {
		return err
	}
	return ex.json(g)
}

// grant makes one attempt, or waits for the lock.
func (ex *exchange) grant(m httpwire.Request, arrived time.Time) (httpwire.Grant, error) {
	r, err := ex.request(m)
	if err != nil {
		return httpwire.Grant{}, err
	}
	if m.Wait < 0 || httpwire.Duration(m.Wait) > httpwire.MaxWait {
		return httpwire.Grant{}, invalid("wait_ms is %d: want 0 to %d; to wait longer, ask again with the same owner", m.Wait, httpwire.Down(httpwire.MaxWait))
	}
	return ex.obtain(r, arrived, httpwire.Duration(m.Wait))
}

// request checks what a client requests, and completes it with the news that the client wants.
func (ex *exchange) request(m httpwire.Request) (driver.Request, error) {
	h, err := ex.hold(m.Hold)
	if err != nil {
		return driver.Request{}, err
	}
	if err := ex.may(Lock, h.Name); err != nil {
		return driver.Request{}, err
	}
	if err := ex.checkTTL(h.TTL); err != nil {
		return driver.Request{}, err
	}
	size := 0
	for k, v := range m.Meta {
		size += len(k) + len(v)
	}
	if size > httpwire.MaxMeta {
		return driver.Request{}, invalid("meta has %d bytes: at most %d", size, httpwire.MaxMeta)
	}
	if m.MinHold > 0 && !ex.s.caps.Ends() {
		return driver.Request{}, fmt.Errorf("%w: holds in %s end for those who have watched them for their TTL and for nobody else, so there is no "+
			"minimum hold, which relies on the end of a hold whose process is gone", driver.ErrUnsupported, ex.s.caps.Name)
	}
	r := m.Driver()
	if m.Limit < 0 {
		return r, invalid("limit is %d: want at least 1", m.Limit)
	}
	if r.Fences > 1 && !r.Mode.Alone() {
		return r, invalid("fences is %d: a lock that is shared or counted gets 1", r.Fences)
	}
	return r, ex.subscribe(&r, m.Revocable)
}

// obtain acquires r, and waits for that if the client wants to.
func (ex *exchange) obtain(r driver.Request, arrived time.Time, maxWait time.Duration) (httpwire.Grant, error) {
	if ex.s.drained.Err() != nil {
		return httpwire.Grant{}, errDraining
	}
	own, err := ex.s.ownerCalls.begin(ex.context(), r.Owner)
	if err != nil {
		return httpwire.Grant{}, err
	}
	defer own.end()
	if err := ex.s.released.check(r.Owner); err != nil {
		return httpwire.Grant{}, err
	}
	known, held, err := ex.s.quota.add(ex.who.Name, r.Hold, maxWait+callTimeout, ex.s.o.MaxHolds)
	if err != nil {
		return httpwire.Grant{}, err
	}
	began, g, err := ex.attempt(r, maxWait > 0)
	if errors.Is(err, driver.ErrHeld) && (maxWait > 0 || r.Queue) {
		ex.s.seen.Refused(r.Hold, arrived)
	}
	if maxWait > 0 && errors.Is(err, driver.ErrHeld) {
		began, g, err = ex.waitFor(r, arrived.Add(maxWait), own.wanted(), err)
	}
	ex.count(r.Hold, g, err, known, held)
	if err != nil && ex.spent {
		ex.s.seen.Released(r.Hold)
		err = driver.Spent(err) // however the wait has ended
	}
	if err != nil {
		return httpwire.Grant{}, ex.untold(r.Owner, err)
	}
	ex.s.seen.Granted(r, g, arrived, began)
	return httpwire.Grant{Fence: g.Fence, Fences: g.Fences, TTL: httpwire.Down(g.TTL), Waited: httpwire.Down(began.Sub(arrived))}, nil
}

// untold returns a refusal that says so if it comes from another server than that of the Owner's stream, which is not told of it.
func (ex *exchange) untold(owner string, err error) error {
	var held *driver.HeldError
	if _, watched := ex.s.watched.Load(owner); !watched && errors.As(err, &held) {
		held.Signaled = false
	}
	return err
}

// count counts what an acquire has led to. A repeated acquire shortens no hold, and not every backend shortens a place.
func (ex *exchange) count(h driver.Hold, g driver.Grant, err error, known, held bool) {
	switch {
	case err == nil:
		h.TTL = g.TTL
		ex.s.quota.granted(ex.who.Name, h, held)
	case ex.spent:
		ex.s.quota.remove(h, false)
	case ex.unknown:
		ex.s.quota.prolong(ex.who.Name, h, !held)
	case !held && ex.queued && known:
		ex.s.quota.prolong(ex.who.Name, h, true)
	case !held && ex.queued:
		ex.s.quota.set(ex.who.Name, h, true)
	case !known:
		ex.s.quota.remove(h, false)
	}
}

// attempt makes one attempt, unless the client has gone. It returns when that began, which is after the request
// has arrived.
func (ex *exchange) attempt(r driver.Request, queue bool) (began time.Time, g driver.Grant, err error) {
	if err := ex.context().Err(); err != nil {
		return time.Time{}, driver.Grant{}, err
	}
	r.Queue = r.Queue || queue && ex.s.caps.QueueingOf(r.Mode) != driver.QueueNever
	ctx := ex.s.limit.within(ex.context())
	defer ctx.End()
	began = time.Now()
	g, err = ex.s.backend.Acquire(ctx, r)
	ex.unknown, ex.spent = httpwire.KindOf(err) == httpwire.Unknown, errors.Is(err, driver.ErrSpent)
	ex.queued = err != nil && !ex.spent && (ex.queued || r.Queue && errors.Is(err, driver.ErrHeld))
	ex.s.metrics.backend("acquire", err, time.Since(began))
	return began, g, err
}

// waitFor makes attempts until one is granted, until the client's maxWait or the request ends, or until the
// client makes another call for the same Owner. It returns the last refusal then. An attempt that has released its Owner
// is the last one for that: waitFor returns after a pause, and the client asks again with a fresh Owner.
func (ex *exchange) waitFor(r driver.Request, until time.Time, yield <-chan struct{}, refused error) (time.Time, driver.Grant, error) {
	ctx, end, err := ex.stream()
	if err != nil {
		return time.Time{}, driver.Grant{}, err
	}
	defer end()
	ctx, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	r.Queue = ex.s.caps.QueueingOf(r.Mode) != driver.QueueNever
	var ready <-chan struct{}
	if !ex.spent {
		armed, closeWatch := ex.arm(ctx, r)
		defer closeWatch()
		ready = armed
	}
	for first := true; ; first = false {
		if !first || ready == nil { // a watch that was armed just now is followed by an attempt
			t := time.NewTimer(ex.pause(ready != nil, refused, r.TTL))
			select {
			case <-ready:
			case <-t.C:
			case <-yield:
				t.Stop()
				return time.Time{}, driver.Grant{}, errYielded
			case <-ctx.Done():
				t.Stop()
				return time.Time{}, driver.Grant{}, ex.waitEnded(ctx, refused)
			}
			t.Stop()
		}
		if ex.spent {
			return time.Time{}, driver.Grant{}, refused
		}
		if err := ex.mayStill(r.Name); err != nil {
			_ = ex.backendRelease(context.WithoutCancel(ctx), r.Hold) // its place in the queue
			ex.s.seen.Released(r.Hold)
			ex.queued = false
			return time.Time{}, driver.Grant{}, err
		}
		began, g, err := ex.attempt(r, true)
		if !errors.Is(err, driver.ErrHeld) {
			return began, g, err
		}
		refused = err
	}
}

// mayStill returns an error if the client's right to lock a name has ended while it waited.
func (ex *exchange) mayStill(name string) error {
	if err := ex.identify(); err != nil {
		return err
	}
	return ex.may(Lock, name)
}

// waitEnded returns why a wait was over.
func (ex *exchange) waitEnded(ctx context.Context, refused error) error {
	if errors.Is(context.Cause(ctx), driver.ErrUnsent) || ex.context().Err() != nil {
		return context.Cause(ctx)
	}
	return refused
}

// arm watches r if the backend can.
func (ex *exchange) arm(ctx context.Context, r driver.Request) (ready <-chan struct{}, closeWatch func()) {
	w, ok := ex.s.backend.(driver.Watcher)
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
func (ex *exchange) pause(watched bool, refused error, ttl time.Duration) time.Duration {
	held, poll := &driver.HeldError{}, 10*max(ex.s.caps.Poll, 10*time.Millisecond)
	errors.As(refused, &held)
	if watched {
		poll = 0
	}
	if !ex.queued {
		ttl = 0
	}
	return wait.Refused(held, poll, ttl)
}

// watch signals when an attempt may succeed. The stream ends with the request, or when the server drains.
func (ex *exchange) watch() error {
	var m httpwire.Request
	if err := ex.decode(&m, httpwire.MaxBody); err != nil {
		return err
	}
	r, err := ex.request(m)
	if err != nil {
		return err
	}
	w, ok := ex.s.backend.(driver.Watcher)
	if !ok {
		return errNoWatch
	}
	ctx, end, err := ex.stream()
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
	ex.s.watched.Store(r.Owner, ex)
	defer ex.s.watched.CompareAndDelete(r.Owner, ex)
	e := ex.events()
	return e.forward(ctx, httpwire.EventArmed, armed.Ready, func() error {
		if err := ex.may(Lock, r.Name); err != nil {
			return err
		}
		return e.send(httpwire.EventReady, nil)
	})
}

var errNoWatch = fmt.Errorf("%w: the backend has no signals for this lock: poll", driver.ErrUnsupported)

// renew answers each hold in a line of its own.
func (ex *exchange) renew() error {
	var m httpwire.Renewal
	if err := ex.decode(&m, httpwire.MaxRenewal); err != nil {
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
		h, err := ex.renewal(w)
		var own *ownerCall
		if err == nil {
			own, err = ex.s.ownerCalls.tryBegin(h.Owner)
		}
		if err != nil {
			lines[i].Outcome, lines[i].Detail = problemOf(err).Kind, err.Error()
			continue
		}
		defer own.end()
		holds, at = append(holds, h), append(at, i)
	}
	for i, err := range ex.renewAll(holds) {
		lines[at[i]].Outcome = httpwire.KindOf(err)
		if err != nil {
			lines[at[i]].Detail = err.Error()
		}
	}
	for i, l := range lines {
		if l.Outcome != httpwire.OK {
			ex.write(ex.r.Pattern, m.Holds[i].Name, http.StatusOK, l.Outcome, 0)
		}
	}
	return ex.lines(lines)
}

// renewal checks one hold of a renewal.
func (ex *exchange) renewal(w httpwire.Hold) (driver.Hold, error) {
	h, err := ex.hold(w)
	if err != nil {
		return h, err
	}
	if err := ex.may(Lock, h.Name); err != nil {
		return h, err
	}
	return h, ex.checkTTL(h.TTL)
}

// renewAll makes one call of the backend, which shares it among its own servers.
func (ex *exchange) renewAll(holds []driver.Hold) []error {
	if len(holds) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ex.r.Context(), callTimeout)
	defer cancel()
	began := time.Now()
	errs := ex.s.backend.Renew(ctx, holds)
	for i, err := range errs {
		ex.s.metrics.backend("renew", err, time.Since(began))
		switch httpwire.KindOf(err) {
		case httpwire.OK:
			ex.s.quota.prolong(ex.who.Name, holds[i], false)
			ex.s.seen.Renewed(holds[i], began)
		case httpwire.Lost:
			ex.s.quota.remove(holds[i], true)
			ex.s.seen.Lost(holds[i])
		case httpwire.Unknown:
			ex.s.quota.prolong(ex.who.Name, holds[i], false)
			ex.s.seen.UnknownRenewal(holds[i], err)
		}
	}
	return errs
}

// lines answers with a JSON object in each line.
func (ex *exchange) lines(all []httpwire.Renewed) error {
	ex.w.Header().Set("Content-Type", "application/x-ndjson")
	e := json.NewEncoder(ex.w)
	for _, line := range all {
		if err := e.Encode(line); err != nil {
			return err
		}
	}
	return nil
}

// release answers to the end of a hold, or of a place in the queue.
func (ex *exchange) release() error {
	var m httpwire.Hold
	if err := ex.decode(&m, httpwire.MaxBody); err != nil {
		return err
	}
	if err := ex.releaseHold(m); err != nil {
		return err
	}
	ex.w.WriteHeader(http.StatusNoContent)
	return nil
}

func (ex *exchange) releaseHold(m httpwire.Hold) error {
	h, err := ex.hold(m)
	if err != nil {
		return err
	}
	if !ex.who.May(Break, h.Name) {
		if err := ex.may(Lock, h.Name); err != nil {
			return err
		}
	}
	own, err := ex.s.ownerCalls.begin(ex.context(), h.Owner)
	if err != nil {
		return err
	}
	defer own.end()
	err = ex.backendRelease(ex.context(), h)
	if err == nil || errors.Is(err, driver.ErrLost) {
		ex.s.seen.Released(h)
		ex.s.released.add(h.Owner)
	}
	return err
}

func (ex *exchange) backendRelease(ctx context.Context, h driver.Hold) error {
	bound := ex.s.limit.within(ctx)
	defer bound.End()
	began := time.Now()
	err := ex.s.backend.Release(bound, h)
	ex.s.metrics.backend("release", err, time.Since(began))
	if kind := httpwire.KindOf(err); kind == httpwire.OK || kind == httpwire.Lost {
		ex.s.quota.remove(h, kind == httpwire.Lost)
	}
	return err
}
