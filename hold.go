package distlock

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/renew"
	"github.com/distlock/distlock/internal/wait"
)

// hold is one Owner's hold at the backend. It is renewed and released as one. Leases come and
// go on it by hand-off and re-entry. It is in one of these states:
//
//	state        what is so then                                       what moves it on
//	requested    an attempt is being made; there is no lease           a grant: held. After a refusal nobody has it
//	held         leases are on it, and it is renewed; an exclusive     Downgrade: downgrading. The last Unlock, Detach, Close,
//	             one is the held of its queue                          or a hand-off for a re-fence: ended. Lose: lost, doubtful
//	downgrading  as held, but it is not handed off nor entered for     an answer: held, as a reader or as before.
//	             writing; the backend may have a reader's by now       All else as from held
//	ended        who ended it releases it, or keeps it for MinHold,    –
//	             or has passed it on
//	lost         the backend has said that it is gone                  a downgrade that may have brought it back: doubtful
//	doubtful     lost without proof: the backend may have it still,    settle, by Unlock, Detach, Extend or a timer: ended
//	             and nobody releases it yet
type hold struct {
	env   *env
	s     *spec
	sh    *shard
	owner string

	// Guarded by sh.mu.
	why      error       // the kind of error that ended it
	queue    *localQueue // which knows it; nil for shared, counted and fair holds
	lease    *Lease      // the current one
	nested   []*Lease    // re-entered ones
	since    instant     // when the current lease began
	handoffs handoffs
	next     uint64 // the next fence of the span
	last     uint64 // the last fence of the span
	state    holdState
	mode     Mode
	leftMode Mode // to release it by: mode, but Read as soon as a downgrade is requested
	revoked  bool // its release was requested

	longestTTL atomic.Int64 // the greatest TTL that a request had beyond that of the terms; raised under sh.mu
	gone       atomic.Bool  // the backend says that it is gone, or it was lost
	reported   atomic.Bool  // its grant was, to the observer
	unused     atomic.Bool  // nothing ran under it, so MinHold does not keep it
	life       renew.Hold
	first      Lease // it needs no memory of its own
}

// holdState is a state of a hold.
type holdState uint8

const (
	requested holdState = iota
	held
	downgrading
	ended
	lost
	doubtful
)

// live reports whether leases are on the hold.
func (s holdState) live() bool { return s == held || s == downgrading }

// handoffs are the hand-offs of one hold in a row.
type handoffs struct {
	since instant // of the lease before the first
	count int
}

// requestedTTL returns the greatest TTL of a request, which the backend may still keep.
func (h *hold) requestedTTL() time.Duration {
	return max(h.s.terms.TTL, time.Duration(h.longestTTL.Load()))
}

// requestTTL records that ttl is going to be requested, so that the hold is not handed off to a
// lease with a shorter one. It fails if l does not hold any more.
func (h *hold) requestTTL(l *Lease, ttl time.Duration) error {
	h.sh.mu.Lock()
	defer h.sh.mu.Unlock()
	if !h.state.live() || h.lease != l && !slices.Contains(h.nested, l) {
		return cmp.Or(l.Err(), ErrLost)
	}
	h.longestTTL.Store(int64(max(h.requestedTTL(), ttl)))
	return nil
}

// Request returns the hold as the backend knows it. Its mode changes only for a reservation, when there
// is no other request for it.
func (h *hold) Request(ttl time.Duration) driver.Hold {
	return driver.Hold{Name: h.s.name, Owner: h.owner, Mode: h.mode, TTL: ttl, Fence: h.last}
}

// left returns the hold that an ended hold may have left at the backend.
func (h *hold) left() driver.Hold {
	return driver.Hold{Name: h.s.name, Owner: h.owner, Mode: h.leftMode, TTL: h.requestedTTL()}
}

// trusted returns for how long a grant is trusted: without renewal for no longer than was
// requested, also where the backend grants what is left of a session.
func (s *spec) trusted(g driver.Grant) time.Duration {
	if s.terms.Fixed {
		return min(g.TTL, s.terms.TTL)
	}
	return g.TTL
}

// trusted reports whether the hold is held, as far as this process knows.
func (h *hold) trusted() bool { return !h.gone.Load() && h.env.now() < h.life.Trust() }

// newLease makes the next lease on the hold, for a Lock called with ctx. sh.mu is held.
func (h *hold) newLease(ctx context.Context, now instant) *Lease {
	h.lease = &h.first
	if h.first.h != nil {
		h.lease = &Lease{}
	}
	h.lease.h, h.lease.fence, h.lease.ctx = h, h.next, ctx
	h.since = now
	if h.next != 0 {
		h.next++
	}
	return h.lease.forUser()
}

// unlock ends one lease's part in the hold. The last one hands the hold off or releases it. The user is told by report,
// which may be nil.
func (h *hold) unlock(ctx context.Context, l *Lease, report func(Event)) error {
	h.sh.mu.Lock()
	if !h.state.live() || len(h.nested) > 0 && h.stillEntered(l) {
		return h.unlocked()
	}
	var event Event
	if report != nil {
		event = h.event(l, h.env.now())
		event.Context = ctx
	}
	if h.queue.handOff(h) {
		h.sh.mu.Unlock()
		emit(report, event, nil)
		return nil
	}
	h.become(ended, ErrReleased)
	h.env.tasks.Begin()
	defer h.env.tasks.End()
	h.sh.mu.Unlock()
	call := h.env.calls.context(lasting(ctx), h.s.terms.CallTimeout)
	defer call.End()
	err := h.giveUp(call)
	if report != nil {
		event.Err = err
		emit(report, event, nil)
	}
	return err
}

// unlocked returns the result of an unlock that leaves the hold as it is. sh.mu is held, and unlocked.
func (h *hold) unlocked() error {
	live := h.state.live()
	h.sh.mu.Unlock()
	if live {
		return nil
	}
	h.settle()
	return fail("unlock", h.s.name, h.whyEnded())
}

// whyEnded returns the error of calls that find the hold ended, though their lease was not.
func (h *hold) whyEnded() error {
	h.sh.mu.Lock()
	defer h.sh.mu.Unlock()
	return h.why
}

// stillEntered removes l from the leases on the hold, and reports whether others are left. sh.mu is
// held.
func (h *hold) stillEntered(l *Lease) bool {
	if h.lease == l {
		h.lease = nil
	}
	h.nested = slices.DeleteFunc(h.nested, func(n *Lease) bool { return n == l })
	return h.lease != nil || len(h.nested) > 0
}

func (h *hold) event(l *Lease, now instant) Event {
	return Event{Context: l.values(), Name: h.s.name, Mode: h.mode, Owner: h.owner, Fence: l.Fence(), Held: now - h.since}
}

// become changes the state to one without leases. sh.mu is held.
func (h *hold) become(state holdState, why error) {
	h.state, h.why = state, why
	h.env.attached.CompareAndDelete(h.owner, h)
}

// end ends the hold and its leases, because of why. It returns the event that reports it; false if there was nothing
// to end.
func (h *hold) end(state holdState, why error) (event Event, done bool) {
	h.sh.mu.Lock()
	if state == lost && h.mode != h.s.mode {
		state = doubtful // what says so may be about the time before a downgrade
	}
	if !h.state.live() {
		if h.state == lost && state == doubtful {
			h.state = doubtful
		}
		h.sh.mu.Unlock()
		return event, false
	}
	leases := h.leases()
	event = h.event(leases[0], h.env.now())
	event.Err = why
	h.become(state, kindOf(why))
	if state == doubtful && (h.env.endless() || h.requestedTTL() > h.s.terms.TTL) {
		// It may have no end of its own, or an Extend has made it last longer than it was trusted. A Close that finds the
		// hold ended waits for this.
		h.env.after(h.life.Trust()+h.s.terms.Margin-h.env.now(), h.settle)
	}
	h.sh.mu.Unlock()
	for _, l := range leases {
		l.end(why) // an Unlock that came first returns that too
	}
	return event, true
}

// giveUp releases a hold whose leases have ended, within ctx, or keeps it until MinHold is over. Without an answer the
// release goes on in the background.
func (h *hold) giveUp(ctx context.Context) error {
	defer h.queue.giveBack(h) // also if the observer of a renewal panics
	if h.s.minHold > 0 && h.minHoldLeft() > 0 {
		return h.keep(ctx)
	}
	err := h.release(ctx, 4)
	if err == nil {
		return nil
	}
	if !errors.Is(err, ErrLost) {
		h.releaseLater()
	}
	return fail("unlock", h.s.name, unknown(err))
}

// release ends the renewal of the hold and releases it at the backend, whose answer is nil, ErrLost, or none after so many
// tries.
func (h *hold) release(ctx context.Context, tries int) error {
	if !h.env.watchdog.Remove(ctx, &h.life) {
		return renew.ErrNoAnswer
	}
	trusted, sent := h.trusted(), false
	for try := 1; ; try++ {
		err := h.env.backend.Release(ctx, h.left())
		switch {
		case err == nil:
			return nil
		case errors.Is(err, ErrLost) && sent && trusted:
			return nil // an earlier try without an answer had released it
		case errors.Is(err, ErrLost), try == tries, h.pause(ctx, try) != nil:
			return err
		}
		sent = sent || !errors.Is(err, driver.ErrUnsent)
	}
}

// releaseLater releases the hold in the background once MinHold is over, unless this client has attached it again by
// then. If the client is closed before, the hold ends with its TTL.
func (h *hold) releaseLater() {
	release := func() {
		if _, again := h.env.attached.Load(h.owner); again {
			return
		}
		h.env.watchdog.Forget(&h.life)
		h.env.releaser.Add(h.left(), h.env.watchdog.InFlight(&h.life))
	}
	rest := h.minHoldLeft()
	if rest <= 0 {
		release()
		return
	}
	h.env.after(rest, func() {
		if h.minHoldLeft() <= 0 {
			release()
		}
	})
}

// Lose ends the hold and all its leases because of why. unknown says that the backend may still
// have the hold. The observer is told by report.
func (h *hold) Lose(why error, unknown bool) (report func()) {
	state := lost
	if unknown {
		state = doubtful
	}
	event, done := h.end(state, h.lostError(why))
	if !done {
		return func() {}
	}
	h.gone.Store(true)
	h.env.watchdog.Forget(&h.life)
	h.queue.giveBack(h)
	return func() { emit(h.env.observer.Lost, event, nil) }
}

// settle releases a hold that was lost without proof in the background, since it may still
// block others. Its Owner proves that no successor is released.
func (h *hold) settle() {
	h.sh.mu.Lock()
	owed := h.state == doubtful
	if owed {
		h.state = ended
	}
	h.sh.mu.Unlock()
	if owed {
		h.releaseLater()
	}
}

// answered reports whether err answers a renewal.
func answered(err error) (bool, error) { return err == nil || errors.Is(err, ErrLost), err }

// unknown returns an error that is of no kind but ErrLost: whatever else a backend says to a release or to the last
// renewal of a hold, the hold may be there.
func unknown(err error) error {
	if err == nil || errors.Is(err, ErrLost) || !driver.Final(err) {
		return err
	}
	return errors.New(plainText(err))
}

// retry calls f until it is done, at most tries times, and only within ctx.
func (h *hold) retry(ctx context.Context, tries int, f func() (done bool, err error)) error {
	for try := 1; ; try++ {
		done, err := f()
		if done || try == tries || h.pause(ctx, try) != nil {
			return err
		}
	}
}

// pause waits before the next try.
func (h *hold) pause(ctx context.Context, try int) error {
	return wait.Sleep(ctx, wait.Jitter(wait.Backoff(try-1, 5*time.Millisecond, h.s.terms.CallTimeout/4)))
}

// Answered reports the answer to a renewal to the observer.
func (h *hold) Answered(err error, left time.Duration) {
	h.sh.mu.Lock()
	event := Event{Context: context.Background(), Name: h.s.name, Mode: h.mode, Owner: h.owner, Left: left, Err: err}
	h.sh.mu.Unlock()
	switch {
	case err == nil:
		emit(h.env.observer.Renewed, event, nil)
	case !errors.Is(err, ErrLost):
		event.Op = "renew"
		emit(h.env.observer.Unanswered, event, nil)
	}
}

// leases returns all leases on the hold, the outermost first. sh.mu is held.
func (h *hold) leases() []*Lease {
	var all []*Lease
	if h.lease != nil {
		all = append(all, h.lease)
	}
	return append(all, h.nested...)
}

// outermost returns the lease that was taken first; nil if there is none.
func (h *hold) outermost() *Lease {
	h.sh.mu.Lock()
	defer h.sh.mu.Unlock()
	if leases := h.leases(); len(leases) > 0 && h.state.live() {
		return leases[0]
	}
	return nil
}

func (h *hold) lostError(why error) error {
	return &Error{Op: "hold", Name: h.s.name, Kind: ErrLost, Err: why}
}

// extend makes the hold last for at least d from now, for its lease l, by a renewal of its own.
func (h *hold) extend(ctx context.Context, l *Lease, d time.Duration) error {
	ctx, stop := context.WithTimeout(ctx, h.s.terms.CallTimeout)
	defer stop()
	reserved, err := h.env.watchdog.Reserve(ctx, stop, &h.life)
	if errors.Is(err, ErrLost) {
		return cmp.Or(l.Err(), err) // Unlock may have come first
	}
	if err != nil {
		return err
	}
	ttl, err := reserved.Extension(d)
	if err == nil && ttl > 0 {
		err = h.requestTTL(l, ttl)
	}
	if err != nil || ttl == 0 {
		reserved.End(0, 0)
		return err
	}
	err = reserved.Renew(ttl)
	if errors.Is(err, ErrLost) {
		h.settle()
		return cmp.Or(l.Err(), err) // Unlock may have come meanwhile
	}
	return err
}

// signalGone is called when the backend learns by itself that the hold is gone, perhaps before its grant has arrived. The
// loss is reported after the grant.
func (h *hold) signalGone() {
	h.gone.Store(true)
	if h.reported.Load() {
		go func() { h.Lose(renew.ErrGone, false)() }()
	}
}

// grantReported lets a loss be reported, also one that was signalled before.
func (h *hold) grantReported() {
	h.reported.Store(true)
	if h.gone.Load() {
		h.Lose(renew.ErrGone, false)()
	}
}

// deliverRevoke calls the user's Revocable function, once. From then on the hold is not handed off.
func (h *hold) deliverRevoke() {
	h.sh.mu.Lock()
	revoked := h.revoked
	h.revoked = true
	h.sh.mu.Unlock()
	if revoked {
		return
	}
	if l := h.outermost(); l != nil {
		if report := h.env.observer.Asked; report != nil {
			h.sh.mu.Lock()
			event := h.event(l, h.env.now())
			h.sh.mu.Unlock()
			emit(report, event, nil)
		}
		h.s.revoked(l.handle())
	}
}

// revocation is a request for the release of an Owner's hold, which may come before the hold is made.
type revocation struct {
	mu   sync.Mutex
	come bool
	h    *hold
}

func (r *revocation) notify() {
	r.mu.Lock()
	r.come = true
	h := r.h
	r.mu.Unlock()
	if h != nil {
		go h.deliverRevoke()
	}
}

// attach delivers it to h.
func (r *revocation) attach(h *hold) {
	r.mu.Lock()
	r.h = h
	come := r.come
	r.mu.Unlock()
	if come {
		go h.deliverRevoke() // it calls the user
	}
}
