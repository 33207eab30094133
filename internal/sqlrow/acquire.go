package sqlrow

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/claims"
	"github.com/distlock/distlock/internal/wait"
)

// busyRetry is the time after which an owner retries that lost all races for the row.
const busyRetry = 5 * time.Millisecond

// Acquire makes one attempt. One statement grants a lock that is free for the owner, and one takes a place in the queue.
// What that can't decide is read, and written if that changes it.
func (b *Backend) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	g, err := b.acquire(ctx, r)
	b.late.note(r.Owner, err)
	if err == nil {
		b.notifier.Address(r.TTL) // keeps the address that the row has now
	}
	return g, b.wrap("acquire", r.Name, err)
}

func (b *Backend) acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	meta, err := b.validate(ctx, r)
	if err != nil {
		return driver.Grant{}, err
	}
	c := claims.Claim{Meta: meta, Address: b.notifier.Address(0)}
	t := takeRequest(r, c)
	// Take is the cheapest. Where this backend waits, or has done so lately, it would change nothing, and neither would the
	// try of a reader.
	contended := b.watchers.watched(KeyOf(r.Name))
	if r.Mode.Alone() && !contended {
		if number, err := b.dialect.Take(ctx, t); err != nil || number > 0 {
			return granted(r, number), err
		}
	}
	if r.Queue || contended == r.Mode.Alone() {
		if g, err, done := b.contend(ctx, r, c, t); done {
			return g, err
		}
	}
	return b.attempt(ctx, r, c)
}

// attempt reads the row, and writes what package claims decides.
func (b *Backend) attempt(ctx context.Context, r driver.Request, c claims.Claim) (g driver.Grant, err error) {
	holds := false
	err = b.change(ctx, r.Name, func(s *state) (v decision) {
		holds = s.Hold(r.Owner) != nil
		g, v = s.decide(r, c)
		if v.err != nil && !r.Queue && b.watchers.queued(KeyOf(r.Name)) {
			v.write = false // the first place's turn is limited by those who wait here
		}
		return v
	})
	if errors.Is(err, errBusy) && !holds { // to a holder that would be false
		err = &driver.HeldError{Retry: busyRetry}
	}
	if err != nil {
		return driver.Grant{}, err
	}
	return g, nil
}

// validate refuses requests that no row can hold, and encodes the request's Meta.
func (b *Backend) validate(ctx context.Context, r driver.Request) (meta string, err error) {
	if err := b.open(ctx); err != nil {
		return "", err
	}
	if err := r.Validate(b.Caps()); err != nil {
		return "", err
	}
	meta = b.meta.Encode(r.Meta)
	switch {
	case len(r.Owner) > MaxOwner:
		return "", fmt.Errorf("%w: the owner has %d bytes, at most %d are possible", driver.ErrInvalid, len(r.Owner), MaxOwner)
	case len(r.Name) > MaxName:
		return "", fmt.Errorf("%w: the name has %d bytes, at most %d are possible", driver.ErrInvalid, len(r.Name), MaxName)
	case r.Mode == driver.Counted && r.Limit > MaxLimit:
		return "", fmt.Errorf("%w: limit %d: at most %d are possible", driver.ErrInvalid, r.Limit, MaxLimit)
	case len(meta) > MaxText:
		return "", fmt.Errorf("%w: the meta data has %d bytes, at most %d are possible", driver.ErrInvalid, len(meta), MaxText)
	}
	return meta, nil
}

// takeRequest returns the dialect's request for r, whose claim would be c.
func takeRequest(r driver.Request, c claims.Claim) TakeRequest {
	t := TakeRequest{
		Name: r.Name, Mode: r.Mode, Owner: r.Owner, TTL: wholeMicros(r.TTL),
		Meta: bytesOf(c.Meta), Address: c.Address, Queue: r.Queue, PlaceLife: wholeMicros(claims.PlaceLife(r.TTL)),
	}
	if r.Mode == driver.Counted {
		t.Limit = r.Limit
	}
	return t
}

func granted(r driver.Request, number int64) driver.Grant {
	return driver.Grant{Fence: uint64(number) << claims.SpanBits, Fences: claims.Fences(r), TTL: wholeMicros(r.TTL)}
}

// contend makes an attempt by one statement. done is false if that has not decided it.
func (b *Backend) contend(ctx context.Context, r driver.Request, c claims.Claim, t TakeRequest) (g driver.Grant, err error, done bool) {
	k, err := b.dialect.Contend(ctx, t)
	switch {
	case err != nil:
		return g, err, true
	case k.Number > 0:
		return granted(r, k.Number), nil, true
	case !k.Placed:
		return g, nil, false
	}
	g, err = b.placed(ctx, r, c, k)
	if driver.Final(err) || errors.Is(err, driver.ErrUnsent) {
		err = errors.New(err.Error()) // there is a place to be released
	}
	return g, err, true
}

// placed answers an owner that has a new place. It may hold at once if only claims that have ended are before it.
func (b *Backend) placed(ctx context.Context, r driver.Request, c claims.Claim, t Taken) (g driver.Grant, err error) {
	var s *state
	if t.Row.Rev > 0 {
		s, err = read(t.Row, t.Now)
	} else {
		s, err = b.readRow(ctx, r.Name)
	}
	if err != nil {
		return g, err
	}
	b.watchers.saw(KeyOf(r.Name), s.clone())
	if _, v := s.decide(r, c); v.err != nil { // and nothing is written
		return g, v.err
	}
	return b.attempt(ctx, r, c)
}

// decide grants or refuses a request whose claim would be c.
func (s *state) decide(r driver.Request, c claims.Claim) (driver.Grant, decision) {
	number, err := s.Next(s.now / micro)
	if err != nil {
		return driver.Grant{}, decision{err: err}
	}
	c.Fence, r.TTL = number<<claims.SpanBits, wholeMicros(r.TTL)
	d := s.Acquire(&r, c, s.now)
	v := decision{write: d.Own || len(d.Sooner) > 0, frees: d.Frees, err: d.Err}
	if d.Err != nil {
		return driver.Grant{}, v
	}
	s.Number = number
	return granted(r, number), v
}

// Release ends a hold or a place in the queue. A hold takes one statement.
func (b *Backend) Release(ctx context.Context, h driver.Hold) error {
	return b.wrap("release", h.Name, b.late.released(h.Owner, notFinal(b.release(ctx, h))))
}

// notFinal makes an answer to a hold's Renew or Release unknown that is final for an attempt: a row that can't be read or
// written says nothing about the hold.
func notFinal(err error) error {
	if errors.Is(err, driver.ErrInvalid) || errors.Is(err, driver.ErrUnsupported) {
		return errors.New(err.Error())
	}
	return err
}

func (b *Backend) release(ctx context.Context, h driver.Hold) error {
	if err := b.open(ctx); err != nil {
		return err
	}
	k := KeyOf(h.Name)
	if h.Mode.Alone() {
		freed, waited, err := b.dialect.Free(ctx, HoldKey{h.Name, h.Owner}, b.watchers.watched(k))
		if freed {
			b.announce(k, waited)
		}
		if freed || err != nil {
			return err
		}
	}
	dropped, waited, err := b.dialect.Drop(ctx, HoldKey{h.Name, h.Owner})
	if dropped {
		b.announce(k, waited)
	}
	if dropped || err != nil {
		return err
	}
	return b.change(ctx, h.Name, func(s *state) decision {
		if !s.Remove(h.Owner) {
			return decision{err: driver.ErrLost}
		}
		return decision{write: true, frees: true}
	})
}

// maxMisses is how often a change may find that the row has changed since it was read. Each time
// another change succeeded.
const (
	maxMisses = 24
	maxPause  = 32 * time.Millisecond
)

// errBusy means that others changed or locked the row whenever it was to be written.
var errBusy = errors.New("others change the row of this lock all the time, or keep it locked: nothing was done")

// decision is the outcome of a function that changes a state.
type decision struct {
	write bool  // the state was changed
	frees bool  // and that may let others in
	err   error // the answer, once it is written
}

// change reads name's row, lets decide change it, and writes it if it has not changed meanwhile.
// Otherwise it starts again. Calls of this process take turns.
func (b *Backend) change(ctx context.Context, name string, decide func(*state) decision) error {
	leave, err := b.changing.Lock(ctx, KeyOf(name))
	if err != nil {
		return driver.Unsent(err)
	}
	defer leave()
	var took time.Duration // by the slowest statement
	for miss := range maxMisses {
		if err := pause(ctx, miss); err != nil {
			return driver.Unsent(err) // each try so far has changed nothing
		}
		asked := time.Now()
		s, err := b.readRow(ctx, name)
		if err != nil {
			return err
		}
		took = max(took, time.Since(asked))
		s.leeway = minLeeway + 2*took
		asked = time.Now()
		done, err := b.writeDecision(ctx, name, s, decide(s))
		took = max(took, time.Since(asked))
		if done || err != nil {
			return err
		}
	}
	return errBusy
}

// minLeeway and twice the time of a statement is how long after it was read a row may be written. If
// a server with another clock wrote it, that clock differs by no more than this, and not at all in
// the direction in which living claims would seem to have ended.
const minLeeway = 250 * time.Millisecond

// pause waits after a miss, longer after each one, so that others can finish.
func pause(ctx context.Context, misses int) error {
	if misses == 0 {
		return ctx.Err()
	}
	return wait.Sleep(ctx, rand.N(min(time.Millisecond<<misses, maxPause)))
}

// writeDecision writes the changed state. done is false if the row has changed since it was read.
func (b *Backend) writeDecision(ctx context.Context, name string, s *state, v decision) (done bool, err error) {
	if !v.write {
		return true, v.err
	}
	row, err := s.write(name)
	if err != nil {
		return false, err
	}
	waited := false
	if row.Rev == 0 {
		row.Rev = 1
		done, err = b.dialect.Insert(ctx, row)
	} else {
		done, waited, err = b.dialect.Swap(ctx, row, v.frees)
	}
	if err != nil || !done {
		return false, err
	}
	if v.frees {
		b.announce(row.Key, waited)
	}
	return true, v.err
}

// announce wakes the waiters of this backend, and notifies other backends.
func (b *Backend) announce(k Key, waited bool) {
	b.Wake(k)
	if waited {
		b.notifier.Notify(k)
	}
}
