package claims

import (
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/distlock/distlock/driver"
)

// Decision is the answer to an attempt, and says what it has changed.
type Decision struct {
	Err    error   // why the owner does not hold
	Own    bool    // the owner's claim is new or was changed
	Sooner []Claim // places that end sooner
	Frees  bool    // others may be let in
}

// Acquire decides an attempt as of now. c has what the owner's hold is to have: its fence, and all that comes from the request
// but the times. If the attempt is refused and r has Queue, c becomes the owner's place in the queue.
func (l *Lock) Acquire(r *driver.Request, c Claim, now int64) Decision {
	if err := l.check(r); err != nil {
		return Decision{Err: err}
	}
	own := l.Claim(r.Owner)
	c.Owner, c.Mode, c.Since, c.Until = r.Owner, r.Mode, now, now+int64(r.TTL)
	if !l.Admits(r) {
		d := Decision{Sooner: l.limitTurns(now)}
		d.Err = l.refusal(r, now)
		d.Own = r.Queue && l.enqueue(own, c, r)
		return d
	}
	d := Decision{Own: true}
	if own != nil && own.Holds() {
		c.Since, c.Until, d.Frees = own.Since, max(c.Until, own.Until), own.Mode != r.Mode
	}
	l.Kind = KindOf(r.Mode)
	l.add(c, r)
	return d
}

// add puts in a claim as requested.
func (l *Lock) add(c Claim, r *driver.Request) {
	if r.Mode == driver.Counted {
		l.Limit = r.Limit
	}
	l.put(c)
}

// enqueue makes c the owner's place at the end of the queue. It keeps the place that the owner has, and reports whether
// that changed.
func (l *Lock) enqueue(own *Claim, c Claim, r *driver.Request) bool {
	now := c.Since
	c.Fence, c.OnRevoke, c.Until = 0, nil, now+int64(PlaceLife(r.TTL))
	switch {
	case own == nil:
		c.Place = l.nextPlace()
	case own.Until >= now+int64(r.TTL) && own.Address == c.Address && own.Mode == c.Mode:
		return false
	default:
		c.Place, c.Since = own.Place, own.Since
	}
	l.add(c, r)
	return true
}

// PlaceLife is how long a place lives that is written now. It exceeds a long TTL, so that few of the
// waiter's attempts have to write it again: a place that lives for the TTL stays.
func PlaceLife(ttl time.Duration) time.Duration {
	return ttl + max(0, min(ttl/2, ttl-2*driver.TurnLife))
}

func (l *Lock) nextPlace() int64 {
	if n := len(l.Claims); n > 0 {
		return l.Claims[n-1].Place + 1
	}
	return 1
}

// check refuses a request that waiting does not help. Permits that are waited for count like those that are held: who waits behind
// them would be refused after the wait.
func (l *Lock) check(r *driver.Request) error {
	own := l.Claim(r.Owner)
	switch {
	case own != nil && !own.Mode.SameKind(r.Mode):
		return fmt.Errorf("%w: the owner has the lock, or waits for it, as %v, and can't have it as %v", driver.ErrInvalid, own.Mode, r.Mode)
	case own != nil && own.Holds() && own.Mode == driver.Read && r.Mode == driver.Write:
		return fmt.Errorf("%w: a read hold can't become a write hold", driver.ErrUnsupported)
	case r.Mode == driver.Counted && l.Limit != r.Limit && slices.ContainsFunc(l.Claims, isPermit):
		return fmt.Errorf("%w: the semaphore is in use with limit %d, not %d", driver.ErrInvalid, l.Limit, r.Limit)
	}
	return nil
}

func isPermit(c Claim) bool { return c.Mode == driver.Counted }

// Admits reports whether r's owner may hold.
func (l *Lock) Admits(r *driver.Request) bool {
	room := 1
	if r.Mode == driver.Counted {
		room = r.Limit
	}
	for c := range l.ahead(r) {
		if room--; room <= 0 || c.Mode != r.Mode {
			return false
		}
	}
	return true
}

// ahead yields the claims that r's owner can't share the lock with, except for permits. A place in the queue is ahead of those
// behind it and of owners without a place, and nothing is ahead of a hold.
func (l *Lock) ahead(r *driver.Request) iter.Seq[*Claim] {
	return func(yield func(*Claim) bool) {
		own := l.Claim(r.Owner)
		if own != nil && own.Holds() {
			return
		}
		for i := range l.Claims {
			c := &l.Claims[i]
			share := r.Mode == driver.Read && c.Mode == driver.Read
			if c == own || !share && !yield(c) {
				return
			}
		}
	}
}

// Blockers returns the claims that block r, until the next change; r may hold if there are none.
func (l *Lock) Blockers(r *driver.Request) []*Claim {
	if l.Admits(r) {
		return nil
	}
	return slices.Collect(l.ahead(r))
}

// maxNamed bounds the holders that a refusal names: one of ten thousand permits stays cheap to try.
const maxNamed = 64

// refusal returns the error for a request that the claims ahead block. It names the holders, or without any the queue. The first
// in the queue is told when it is let in. Those behind it are not told if it has died: its turn passes silently.
func (l *Lock) refusal(r *driver.Request, now int64) *driver.HeldError {
	place := l.FirstPlace()
	e := &driver.HeldError{Signaled: r.Queue && (place == nil || place.Owner == r.Owner)}
	first, held := int64(Forever), false
	for c := range l.ahead(r) {
		first, held = min(first, c.Until), held || c.Holds()
		if (c.Holds() || !held) && len(e.Holders) < maxNamed {
			e.Holders = append(e.Holders, c.Info(now))
		}
	}
	if first < Forever {
		e.Retry = time.Duration(first - now)
	}
	return e
}

// LetsIn returns the places in the queue whose owners may hold now, and whether an owner without a place
// may hold too. Behind a place that is blocked, all are.
func (l *Lock) LetsIn() (places []Claim, others bool) {
	others = true
	for _, c := range l.Claims {
		if c.Holds() {
			continue
		}
		if r := c.request(l.Limit); !l.Admits(&r) {
			return places, false
		}
		places = append(places, c)
		others = others && !c.Mode.Alone()
	}
	return places, others
}

// FirstPlace returns the first place in the queue, until the next change; nil: there is none.
func (l *Lock) FirstPlace() *Claim {
	for i := range l.Claims {
		if !l.Claims[i].Holds() {
			return &l.Claims[i]
		}
	}
	return nil
}

// limitTurns ends after TurnLife the places that nothing but their owners' absence keeps from holding, all at once. It
// returns those that it has changed.
func (l *Lock) limitTurns(now int64) (sooner []Claim) {
	for i := range l.Claims {
		c, first := &l.Claims[i], &l.Claims[0]
		if i > 0 && (c.Mode != first.Mode || c.Mode.Alone() || c.Mode == driver.Counted && i >= l.Limit) {
			break
		}
		if c.endBy(now + int64(driver.TurnLife)) {
			sooner = append(sooner, *c)
		}
	}
	return sooner
}
