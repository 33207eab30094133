package distlock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/renew"
	"github.com/distlock/distlock/internal/wait"
)

// hold is one Owner's hold at the backend. It is renewed and released as one. Leases come and
// go on it by hand-off and re-entry.
type hold struct {
	env   *env
	s     *spec
	sh    *shard
	owner string

	// Guarded by sh.mu.
	queue       *localQueue // which knows it; nil for shared, counted and fair holds
	lease       *Lease      // the current one
	nested      []*Lease    // re-entered ones
	since       instant     // when the current lease began
	streak      handoffStreak
	next        uint64 // the next fence of the span
	last        uint64 // the last fence of the span
	mode        Mode
	downgrading bool // a downgrade is in progress
	revoked     bool // its release was requested
	ended       bool // released, lost, or passed on for a re-fence
	closed      bool // it ended because the client closed
	halfway     bool // it ended during a downgrade: it may be a reader's at the backend
	gone        bool // lost as a fact
	mayRemain   bool // lost without proof: the backend may still have it
	regranted   bool // as a reader: a signal may be about the time before
	declined    bool // the waiter that it was handed to had given up

	longestTTL atomic.Int64 // the greatest TTL of a request; raised under sh.mu
	told       atomic.Bool  // the backend says that it is gone; Lose follows
	life       renew.Hold
}

// handoffStreak is a series of hand-offs of one hold.
type handoffStreak struct {
	since instant
	count int
}

// requestedTTL returns the greatest TTL of a request, which the backend may still keep.
func (h *hold) requestedTTL() time.Duration { return time.Duration(h.longestTTL.Load()) }

// requestTTL records that ttl is going to be requested, so that the hold is not handed off to a
// lease with a shorter one. It fails if l does not hold any more.
func (h *hold) requestTTL(l *Lease, ttl time.Duration) error {
	h.sh.mu.Lock()
	defer h.sh.mu.Unlock()
	if h.ended || h.lease != l && !slices.Contains(h.nested, l) {
		return cmp.Or(l.Err(), ErrLost)
	}
	h.longestTTL.Store(int64(max(h.requestedTTL(), ttl)))
	return nil
}

// Request returns the hold as the backend knows it. Its mode changes only under a claim, when there
// is no other request for it.
func (h *hold) Request(ttl time.Duration) driver.Hold {
	return driver.Hold{Name: h.s.name, Owner: h.owner, Mode: h.mode, TTL: ttl}
}

// remains returns the hold that an ended hold may have left at the backend.
func (h *hold) remains() driver.Hold {
	r := h.Request(h.requestedTTL())
	if h.halfway {
		r.Mode = Read
	}
	return r
}

// markEnded marks the hold as ended. sh.mu is held.
func (h *hold) markEnded() {
	h.ended, h.halfway = true, h.downgrading
	h.env.attached.CompareAndDelete(h.owner, h)
}

// whyEnded returns the error of calls that find the hold ended, though their lease was not. sh.mu is held.
func (h *hold) whyEnded() error {
	if h.closed {
		return ErrClosed
	}
	return ErrLost
}

// newLease makes the next lease on the hold, for a Lock called with ctx. sh.mu is held.
func (h *hold) newLease(ctx context.Context, now instant) *Lease {
	h.lease = &Lease{h: h, fence: h.next, ctx: ctx}
	h.declined = false
	h.since = now
	if h.next != 0 {
		h.next++
	}
	return h.lease.forUser()
}

// unlock ends one lease's part in the hold. The last one hands the hold off or releases it.
func (h *hold) unlock(ctx context.Context, l *Lease) error {
	h.sh.mu.Lock()
	if h.ended {
		why := h.whyEnded()
		h.sh.mu.Unlock()
		h.dropRemains()
		return fail("unlock", h.s.name, why)
	}
	if h.stillEntered(l) {
		h.sh.mu.Unlock()
		return nil
	}
	now := h.env.now()
	var event Event
	report := h.reports().Released
	if report != nil {
		event = h.event(l, now)
		event.Context = ctx
	}
	if h.queue != nil && h.queue.handOff(h, now) {
		h.sh.mu.Unlock()
		emit(report, event, nil)
		return nil
	}
	h.markEnded()
	h.env.tasks.Begin()
	defer h.env.tasks.End()
	h.sh.mu.Unlock()
	call := h.env.calls.context(context.WithoutCancel(ctx), h.s.terms.CallTimeout)
	defer call.End()
	err := func() error {
		defer h.endLocally() // also if the observer of a renewal panics
		return h.giveUp(call)
	}()
	event.Err = err
	emit(report, event, nil)
	return err
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

// reports returns the observer, or none for a lease that was never reported as handed off. sh.mu is held.
func (h *hold) reports() *Observer {
	if h.declined {
		return &Observer{}
	}
	return &h.env.observer
}

func (h *hold) event(l *Lease, now instant) Event {
	return Event{Context: l.values(), Name: h.s.name, Mode: h.mode, Owner: h.owner, Fence: l.Fence(), Held: now - h.since}
}

// endLocally lets the next waiter of this process become the contender.
func (h *hold) endLocally() {
	h.sh.mu.Lock()
	defer h.sh.mu.Unlock()
	h.leaveQueue()
}

// leaveQueue is endLocally with sh.mu held.
func (h *hold) leaveQueue() {
	if h.queue == nil {
		return
	}
	if h.queue.held == h {
		h.queue.held = nil
		h.queue.history.released = h.env.now()
		if h.revoked {
			h.queue.history.refused = h.env.now()
		}
	}
	h.queue.promote()
}

// giveUp releases a hold whose leases have ended, within ctx, or keeps it until MinHold is over.
func (h *hold) giveUp(ctx context.Context) error {
	if h.minHoldLeft() > 0 {
		return h.keep(ctx)
	}
	if !h.env.watchdog.Remove(ctx, &h.life) {
		h.releaseLater()
		return h.unconfirmed(renew.ErrNoAnswer)
	}
	return h.release(ctx)
}

// minHoldLeft returns how long the hold has to be kept for MinHold.
func (h *hold) minHoldLeft() time.Duration {
	if h.s.minHold == 0 {
		return 0 // such a hold may be handed off, which changes since
	}
	return h.since + h.s.minHold - h.env.now()
}

// keep goes on renewing the hold, whose leases have ended, where it would end before MinHold is over, and has it released
// then.
func (h *hold) keep(ctx context.Context) error {
	h.env.watchdog.Keep(&h.life)
	defer h.releaseLater() // not before: to prolong a hold that is being released would be a loss
	return h.prolong(ctx)
}

// prolong makes the hold live until MinHold is over, also if this process ends before, and ends its renewal. A session that
// ends sooner ends the hold, and is renewed.
func (h *hold) prolong(ctx context.Context) error {
	if h.env.caps.Session {
		return nil
	}
	err := h.retry(ctx, 4, func() (bool, error) { return answered(h.prolongOnce(ctx)) })
	switch {
	case errors.Is(err, ErrLost):
		return fail("unlock", h.s.name, err)
	case err != nil:
		return fail("unlock", h.s.name, fmt.Errorf("if this process ends, so may the lock before MinHold is over: %w", unknown(err)))
	}
	h.env.watchdog.Forget(&h.life)
	return nil
}

func (h *hold) prolongOnce(ctx context.Context) error {
	ctx, stop := context.WithTimeout(ctx, h.s.terms.CallTimeout)
	defer stop()
	claim, err := h.env.watchdog.Claim(ctx, stop, &h.life)
	if err != nil {
		return err
	}
	// The margin is no part of the life that is left at the backend.
	ttl, err := claim.Extension(h.minHoldLeft() - h.s.terms.Margin)
	if err != nil || ttl == 0 {
		claim.End(0, 0)
		return err
	}
	ttl = max(ttl, h.env.caps.MinTTL)
	h.sh.mu.Lock()
	h.longestTTL.Store(int64(max(h.requestedTTL(), ttl)))
	h.sh.mu.Unlock()
	return claim.Renew(ttl)
}

// releaseLater releases the hold in the background once MinHold is over, unless this client has attached it again by
// then. If the client is closed before, the hold ends with its TTL.
func (h *hold) releaseLater() {
	release := func() {
		if _, again := h.env.attached.Load(h.owner); again {
			return
		}
		h.env.watchdog.Forget(&h.life)
		h.env.releaser.Add(h.remains(), h.env.watchdog.InFlight(&h.life))
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

// release releases the hold at the backend, whose answer is nil, ErrLost, or none: then the release goes on in the
// background.
func (h *hold) release(ctx context.Context) error {
	trusted := h.env.now() < h.life.Trust()
	tries := 0
	err := h.retry(ctx, 4, func() (bool, error) {
		err := h.env.backend.Release(ctx, h.remains())
		if !errors.Is(err, driver.ErrUnsent) {
			tries++
		}
		return answered(err)
	})
	switch {
	case err == nil:
		return nil
	case errors.Is(err, ErrLost) && tries > 1 && trusted:
		// An earlier try without an answer had released it.
		return nil
	case errors.Is(err, ErrLost):
		return fail("unlock", h.s.name, err)
	}
	h.env.releaser.Add(h.remains(), nil)
	return h.unconfirmed(err)
}

// unconfirmed returns the error of an Unlock that the backend has not confirmed.
func (h *hold) unconfirmed(err error) error { return fail("unlock", h.s.name, unknown(err)) }

// answered reports whether err answers a release or a renewal.
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
	for try := 0; ; try++ {
		done, err := f()
		if done || try+1 == tries {
			return err
		}
		if wait.Sleep(ctx, wait.Jitter(wait.Backoff(try, 5*time.Millisecond, h.s.terms.CallTimeout/4))) != nil {
			return err
		}
	}
}

// Lose ends the hold and all its leases because of why. mayRemain says that the backend may still
// have the hold. The observer is told by report.
func (h *hold) Lose(why error, mayRemain bool) (report func()) {
	h.sh.mu.Lock()
	if h.ended {
		h.sh.mu.Unlock()
		return func() {}
	}
	h.markEnded()
	h.mayRemain = mayRemain || h.regranted
	h.gone = !h.mayRemain
	mayRemain = h.mayRemain
	leases := h.leases()
	observe := h.reports().Lost
	event := h.event(leases[0], h.env.now())
	if mayRemain && (h.env.caps.Session || h.requestedTTL() > h.s.terms.TTL) {
		// Other holds may keep the session alive, and this one with it, or an Extend has made it
		// last longer than it was trusted. A Close that finds the hold ended waits for this.
		h.env.after(h.life.Trust()+h.s.terms.Margin-h.env.now(), h.dropRemains)
	}
	h.sh.mu.Unlock()

	h.env.watchdog.Forget(&h.life)
	event.Err = h.lostError(why)
	for _, l := range leases {
		l.end(event.Err) // an Unlock that came first returns ErrLost too
	}
	h.endLocally()
	return func() { emit(observe, event, nil) }
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

// outermost returns the lease that was taken first; nil if there is none.
func (h *hold) outermost() *Lease {
	h.sh.mu.Lock()
	defer h.sh.mu.Unlock()
	if leases := h.leases(); len(leases) > 0 && !h.ended {
		return leases[0]
	}
	return nil
}

func (h *hold) lostError(why error) error {
	return &Error{Op: "hold", Name: h.s.name, Kind: ErrLost, Err: why}
}

// dropRemains releases a hold that was lost without proof in the background, since it may still
// block others. Its Owner proves that no successor is released.
func (h *hold) dropRemains() {
	if h.takeRemains() {
		h.releaseLater()
	}
}

// takeRemains reports whether the caller has to release what may remain at the backend.
func (h *hold) takeRemains() bool {
	h.sh.mu.Lock()
	defer h.sh.mu.Unlock()
	mayRemain := h.mayRemain
	h.mayRemain = false
	return mayRemain
}

// closeLeases ends the hold and its leases because the client closes. It returns the function that reports the
// release; nil if the hold had ended before.
func (h *hold) closeLeases() (report func(error)) {
	h.sh.mu.Lock()
	if h.ended {
		h.sh.mu.Unlock()
		return nil
	}
	h.markEnded()
	h.closed = true
	leases := h.leases()
	released := h.reports().Released
	event := h.event(leases[0], h.env.now())
	h.sh.mu.Unlock()
	for _, l := range leases {
		l.end(ErrClosed)
	}
	return func(err error) {
		event.Err = err
		emit(released, event, nil)
	}
}

// closeDown releases a hold that closeLeases has ended, within a short time. Without an answer the caller calls giveUp.
func (h *hold) closeDown(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, h.s.terms.CallTimeout/4)
	defer cancel()
	if !h.env.watchdog.Remove(ctx, &h.life) {
		return renew.ErrNoAnswer
	}
	if err := h.env.backend.Release(ctx, h.remains()); !errors.Is(err, ErrLost) {
		return err
	}
	return nil
}

// extend makes the hold last for at least d from now, for its lease l, by a renewal of its own.
func (h *hold) extend(ctx context.Context, l *Lease, d time.Duration) error {
	ctx, stop := context.WithTimeout(ctx, h.s.terms.CallTimeout)
	defer stop()
	claim, err := h.env.watchdog.Claim(ctx, stop, &h.life)
	if errors.Is(err, ErrLost) {
		return cmp.Or(l.Err(), err) // Unlock may have come first
	}
	if err != nil {
		return err
	}
	ttl, err := claim.Extension(d)
	if err == nil && ttl > 0 {
		err = h.requestTTL(l, ttl)
	}
	if err != nil || ttl == 0 {
		claim.End(0, 0)
		return err
	}
	err = claim.Renew(ttl)
	if errors.Is(err, ErrLost) {
		h.dropRemains()
		return cmp.Or(l.Err(), err) // Unlock may have come meanwhile
	}
	return err
}

// holdSignal delivers a signal of the backend to its hold, which may not have been made yet: the
// hold is lost, or its release is requested.
type holdSignal struct {
	mu       sync.Mutex
	revoke   bool // it requests the release
	received bool
	h        *hold
}

func (n *holdSignal) notify() {
	n.mu.Lock()
	n.received = true
	h := n.h
	n.mu.Unlock()
	if h == nil {
		return
	}
	if !n.revoke {
		h.told.Store(true)
	}
	go n.deliver(h)
}

func (n *holdSignal) attach(h *hold) {
	n.mu.Lock()
	n.h = h
	come := n.received
	n.mu.Unlock()
	switch {
	case come && n.revoke:
		go n.deliver(h) // it calls the user
	case come:
		n.deliver(h)
	}
}

func (n *holdSignal) deliver(h *hold) {
	if n.revoke {
		h.deliverRevoke()
		return
	}
	h.Lose(renew.ErrGone, false)()
}
