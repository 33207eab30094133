package engine

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/claims"
	"github.com/distlock/distlock/internal/wait"
)

// maxMisses bounds how often a call starts anew because others were faster.
const maxMisses = 24

// errBusy says that others were faster each time.
var errBusy = errors.New("others change this lock all the time, or keep it locked: nothing was done")

// pause waits after a miss, longer after each one.
func pause(ctx context.Context, misses int) error {
	if misses < 2 {
		return ctx.Err()
	}
	return wait.Sleep(ctx, rand.N(min(time.Millisecond<<misses, 32*time.Millisecond)>>2))
}

// Acquire makes one attempt.
func (b *Backend) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	g, err := b.acquire(ctx, r)
	return g, b.wrap("acquire", r.Name, err)
}

// A lock that others have used lately is not taken again at once: they may be on their way into the queue, on a machine that is
// busy with who holds it.
const (
	lately    = 100 * time.Millisecond
	deference = time.Millisecond
)

// maxOwner is the longest Owner, in bytes.
const maxOwner = 64

func (b *Backend) acquire(ctx context.Context, r driver.Request) (g driver.Grant, err error) {
	if err := b.usable(ctx); err != nil {
		return g, err
	}
	if err := r.Validate(b.Caps()); err != nil {
		return g, err
	}
	if len(r.Owner) > maxOwner || strings.ContainsAny(r.Owner, " \t\n") {
		return g, fmt.Errorf("%w: owner %s: want at most %d bytes without blanks", driver.ErrInvalid, driver.Quote(r.Owner), maxOwner)
	}
	r.TTL = wholeMicros(r.TTL)
	a := &attempt{b: b, r: &r, claim: claims.Claim{Meta: b.meta.Encode(r.Meta), Address: b.follow(0)}, own: b.memory.of(r.Owner), leave: func() {}}
	err = a.run(ctx)
	a.leave()
	if err != nil {
		return g, err
	}
	return driver.Grant{Fence: uint64(a.fence), Fences: claims.Fences(r), TTL: r.TTL}, nil
}

// attempt is one call of Acquire.
type attempt struct {
	b     *Backend
	r     *driver.Request
	claim claims.Claim // what the request makes of a claim: all but its times and its number
	own   own
	fence int64
	woken bool   // it was, and nothing is written since
	wrote bool   // the owner has a claim that this call has written
	leave func() // ends the turn among the calls of this backend
}

// run decides on what is known of the lock, if the store checks all that the decision depends on, and else on what it reads.
func (a *attempt) run(ctx context.Context) error {
	l := a.recall(ctx)
	if l != nil && len(l.Claims) == 0 && time.Since(l.others) < lately {
		_ = wait.Sleep(ctx, deference)
	}
	for misses := range maxMisses {
		if err := a.turn(ctx, misses); err != nil {
			return a.nothing(err)
		}
		var c *Change
		var next *lock
		err := errNotKnown
		if l != nil {
			c, next, err = a.decide(l, misses)
		}
		if errors.Is(err, errNotKnown) {
			if l, err = a.b.read(ctx, a.r.Name); err != nil {
				return a.nothing(err)
			}
			c, next, err = a.decide(l, misses)
		}
		if c == nil {
			a.b.memory.remember(a.r.Name, l)
			a.refused(l)
			return a.nothing(err)
		}
		var done bool
		if l, done, err = a.write(ctx, c, next); done || err != nil {
			return err
		}
	}
	return a.nothing(errBusy)
}

// turn lets the calls of this backend that have missed go one after the other.
func (a *attempt) turn(ctx context.Context, misses int) error {
	if misses == 1 {
		leave, err := a.b.turns.Lock(ctx, a.r.Name)
		if err != nil {
			return err
		}
		a.leave = leave
	}
	return pause(ctx, misses)
}

// refused says whom the owner's waiters are behind. Where a waiter is woken before the change shows, what was read may be older.
func (a *attempt) refused(l *lock) {
	a.b.followed(a.r.Name, l)
	if a.woken && a.b.options.Address != nil {
		a.b.waiters.pollAll(a.b, a.r.Name, a.r.Owner)
	}
}

// recall returns what is known of the lock; nil: it must be read. A waiter that is woken writes first, and reads if that fails.
func (a *attempt) recall(ctx context.Context) *lock {
	l := a.b.memory.recall(a.r.Name)
	a.woken = a.b.waiters.woken(a.r.Name, a.r.Owner)
	place := a.own.claim
	turn := a.woken && place.Place > 0 && a.own.lost == 0
	if turn && a.b.memory.upper() == 0 {
		_, _ = a.b.readAll(ctx, []string{a.r.Name}) // for the clock
	}
	switch {
	case a.own.lost > 0 || a.b.memory.upper() == 0:
		return nil
	case turn: // the one ahead is gone, or the store does not grant it
		return &lock{Lock: claims.Lock{Limit: a.own.limit, Claims: []claims.Claim{place}}}
	case place.Place > 0:
		return nil
	case l == nil && place.Owner == "":
		return &lock{}
	case l != nil && place.Owner != "" && l.Claim(a.r.Owner) == nil:
		return nil
	}
	return l
}

// errNotKnown means that the lock must be read.
var errNotKnown = errors.New("not known")

// decide returns what the attempt changes, and the lock after that; or the answer, if it changes nothing.
func (a *attempt) decide(l *lock, misses int) (*Change, *lock, error) {
	if _, err := l.Next(l.now); err != nil {
		return nil, nil, err
	}
	next := l.clone()
	had, claim := l.Claim(a.r.Owner), a.claim
	claim.Fence = newVersion << claims.SpanBits
	d := next.Acquire(a.r, claim, l.now*micro)
	var refusal *driver.HeldError
	held := errors.As(d.Err, &refusal)
	if held {
		sinceGrant(refusal.Holders, l.now)
	}
	if d.Err != nil && !l.fresh && (!held || had != nil || !a.r.Queue || a.r.Mode == driver.Counted) {
		return nil, nil, errNotKnown
	}
	sooner := len(d.Sooner) > 0 || len(l.sooner) > 0
	done := a.wrote && had != nil || !d.Own && (a.wrote || !sooner || misses > 0) // the life of other places is shortened by the next attempt
	if d.Err != nil && (done || !held) {
		return nil, nil, d.Err
	}
	c := &Change{Name: a.r.Name, Version: l.version, Void: a.own.lost, Lazy: held}
	if d.Own {
		c.Before = a.setTimes(l, next, had)
	}
	a.place(c, l, next, had, held, sooner, misses)
	if c.Frees = d.Frees; c.Frees {
		c.Wake = a.b.others(next.wakes(a.r.Name))
	}
	return c, next, nil
}

// setTimes makes the owner's claim in next last for so long from the upper bound of the clock as it does from l's, and returns when it ends.
func (a *attempt) setTimes(l, next *lock, had *claims.Claim) (end int64) {
	own := next.Claim(a.r.Owner)
	later := max(a.b.memory.upper()-l.now, 0) * micro
	own.Until += later
	if own.Since == l.now*micro {
		own.Since += later
	}
	if !own.Holds() && (had == nil || had.Holds()) {
		own.Place = newVersion
	}
	return own.Until / micro
}

// place says which part of the text c changes: the owner's line, the end, or all.
func (a *attempt) place(c *Change, l, next *lock, had *claims.Claim, held, sooner bool, misses int) {
	own := next.Claim(a.r.Owner)
	line := func() {
		c.New, c.Until = next.line(own), own.Until/micro
		if had != nil {
			c.Old = l.line(had)
		} else {
			c.Stamp = a.stamp(l)
		}
	}
	counted := a.r.Mode == driver.Counted
	clean := misses < 3 && l.dead // an edit leaves dead claims there
	switch {
	case had != nil && had.Holds():
		c.Ahead = Anything
	case a.own.lost > 0 || counted:
	case held && had == nil && own != nil: // the next attempt shortens the life of others
		c.Ahead = Anything
	case sooner && !a.wrote:
	case held:
		c.Ahead = Anything
	case clean:
	case a.r.Mode == driver.Read && (had != nil || len(l.Claims) > 0):
		c.Ahead = Readers
	case had != nil:
		c.Ahead = Nothing
	}
	if c.Ahead != Whole {
		line()
		return
	}
	c.New, c.Until = next.text()
	c.Since, c.Stamp = l.since(), a.stamp(l)
	c.Free = len(next.Claims) == 1 && own != nil && a.own.lost == 0
}

// stamp is what a Release makes void if there is no answer to the change.
func (a *attempt) stamp(l *lock) int64 { return max(l.void+1, a.own.lost+1, a.b.memory.upper()) }

// write makes a change. It returns the lock as it is then, and whether the owner holds.
func (a *attempt) write(ctx context.Context, c *Change, next *lock) (l *lock, done bool, err error) {
	out, jumped := a.b.swap(ctx, *c)
	a.woken = false
	if out.Err != nil {
		return nil, false, a.failed(c, out.Err)
	}
	if l, err = next.became(out, a.r.Owner); err != nil {
		return nil, false, a.nothing(err)
	}
	own := l.Claim(a.r.Owner)
	if out.Done {
		a.own.lost, a.wrote = 0, true // what is late is void
		a.b.memory.keep(a.r.Owner, l, own)
	}
	if out.Untold {
		l = nil
	}
	a.b.memory.remember(a.r.Name, l)
	if out.Untold && a.r.Mode == driver.Read {
		a.b.memory.beside(a.r.Name, aReader)
	}
	if !out.Done || own == nil || !own.Holds() {
		return l, false, nil
	}
	a.fence = own.Fence
	a.b.follow(a.r.TTL)
	if c.Frees && l == nil {
		l, err = a.b.read(ctx, a.r.Name)
	}
	if c.Frees && err == nil {
		a.b.wake(ctx, a.r.Name, c.Wake, l)
	}
	return l, !jumped, nil // or it is granted once more
}

// failed answers an attempt whose change c had no answer, or was refused.
func (a *attempt) failed(c *Change, err error) error {
	a.b.memory.remember(a.r.Name, nil)
	if errors.Is(err, driver.ErrUnsent) || driver.Final(err) {
		return a.nothing(err)
	}
	a.b.memory.lost(a.r.Owner, max(c.Stamp, a.own.lost), a.r.TTL)
	return err
}

// nothing returns an answer that is given without a change.
func (a *attempt) nothing(err error) error {
	switch {
	case err == nil || errors.Is(err, driver.ErrHeld):
		return err
	case a.wrote: // there is a claim to be released
		return errors.New(err.Error())
	case driver.Final(err):
		return err
	}
	return driver.Unsent(err)
}
