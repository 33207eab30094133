package memlock

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/wait"
)

const (
	// maxFence keeps fences in a signed 64-bit number, with room for the last span.
	maxFence = 1<<63 - 1<<32

	// reportedHolders bounds the holders in a refusal. One of ten thousand permits stays
	// cheap to try.
	reportedHolders = 8
)

// entry is a hold or a place in the queue. Its times count from the store's epoch.
type entry struct {
	owner        string
	mode         driver.Mode
	revoked      bool   // onRevoke was called
	fence        uint64 // 0 in the queue
	since, until time.Duration
	meta         map[string]string
	onRevoke     func()
}

// watcher is one request that waits for a signal.
type watcher struct {
	closed *atomic.Bool // of its connection
	owner  string
	mode   driver.Mode
	limit  int
	ready  wait.Signal
}

// lockEntry is the state of one name. Its shard's mutex guards it.
type lockEntry struct {
	fence    uint64 // greatest ever granted
	limit    int    // of the Counted entries
	holders  []entry
	queue    []entry
	watchers []*watcher
}

func (l *lockEntry) idle() bool { return len(l.holders)+len(l.queue)+len(l.watchers) == 0 }

// expire removes the entries whose TTL has passed.
func (l *lockEntry) expire(now time.Duration) {
	expired := func(e entry) bool { return e.until <= now }
	l.holders = slices.DeleteFunc(l.holders, expired)
	l.queue = slices.DeleteFunc(l.queue, expired)
}

func find(entries []entry, owner string) int {
	return slices.IndexFunc(entries, func(e entry) bool { return e.owner == owner })
}

func (l *lockEntry) acquire(r *driver.Request, now time.Duration) (driver.Grant, error) {
	own, err := l.check(r, now)
	if err == nil {
		return l.grant(r, own, now), nil
	}
	if r.Queue && errors.Is(err, driver.ErrHeld) {
		l.enqueue(r, now)
	}
	return driver.Grant{}, err
}

// check returns an error if r can't hold now, else the index of the hold that its Owner
// already has, or -1.
func (l *lockEntry) check(r *driver.Request, now time.Duration) (own int, err error) {
	l.expire(now)
	if err := l.checkKind(r); err != nil {
		return -1, err
	}
	own = find(l.holders, r.Owner)
	switch {
	case own < 0 && !l.admits(r.Owner, r.Mode, r.Limit):
		l.limitTurn(now)
		return -1, l.refusal(r, now)
	case own >= 0 && l.holders[own].mode == driver.Read && r.Mode == driver.Write:
		return -1, fmt.Errorf("%w: a read hold can't become a write hold", driver.ErrUnsupported)
	case l.fence >= maxFence:
		return -1, fmt.Errorf("%w: %s has used up its fences", driver.ErrInvalid, driver.Quote(r.Name))
	}
	return own, nil
}

// checkKind returns ErrInvalid if the name is in use as another kind of lock or with
// another limit.
func (l *lockEntry) checkKind(r *driver.Request) error {
	var used *entry
	switch {
	case len(l.holders) > 0:
		used = &l.holders[0]
	case len(l.queue) > 0:
		used = &l.queue[0]
	default:
		return nil
	}
	if !used.mode.SameKind(r.Mode) {
		return fmt.Errorf("%w: %s is in use as %v, requested as %v", driver.ErrInvalid, driver.Quote(r.Name), used.mode, r.Mode)
	}
	if r.Mode == driver.Counted && r.Limit != l.limit {
		return fmt.Errorf("%w: %s is in use with limit %d, requested with %d", driver.ErrInvalid, driver.Quote(r.Name), l.limit, r.Limit)
	}
	return nil
}

// excludes reports whether an entry keeps out a later request. For permits it reports
// whether the entry counts against the limit.
func excludes(entry, request driver.Mode) bool {
	return entry != driver.Read || request != driver.Read
}

// admits reports whether there is room beside the holders and the waiters ahead of owner.
func (l *lockEntry) admits(owner string, mode driver.Mode, limit int) bool {
	blockers := 0
	for i := range l.holders {
		if excludes(l.holders[i].mode, mode) {
			blockers++
		}
	}
	for i := range l.ahead(owner) {
		if excludes(l.queue[i].mode, mode) {
			blockers++
		}
	}
	return blockers < room(mode, limit)
}

// ahead returns the part of the queue before owner: all of it if owner has no place.
func (l *lockEntry) ahead(owner string) []entry {
	if i := find(l.queue, owner); i >= 0 {
		return l.queue[:i]
	}
	return l.queue
}

// limitTurn ends the first place in the queue after TurnLife if nothing but its Owner's absence keeps it
// from holding.
func (l *lockEntry) limitTurn(now time.Duration) {
	if len(l.queue) == 0 {
		return
	}
	if first := &l.queue[0]; l.admits(first.owner, first.mode, l.limit) {
		first.until = min(first.until, now+driver.TurnLife)
	}
}

func room(mode driver.Mode, limit int) int {
	if mode == driver.Counted {
		return limit
	}
	return 1
}

// refusal names the holders in r's way, and the time after which it is let in if they
// neither renew nor release.
func (l *lockEntry) refusal(r *driver.Request, now time.Duration) *driver.HeldError {
	held := new(driver.HeldError)
	var buf [16]time.Duration
	ends := buf[:0]
	for _, e := range l.holders {
		if excludes(e.mode, r.Mode) {
			ends = append(ends, e.until)
			if len(held.Holders) < reportedHolders {
				held.Holders = append(held.Holders, e.describe(now))
			}
		}
	}
	for _, e := range l.ahead(r.Owner) {
		if excludes(e.mode, r.Mode) {
			ends = append(ends, e.until)
		}
	}
	slices.Sort(ends)
	held.Retry = ends[len(ends)-room(r.Mode, r.Limit)] - now
	return held
}

// grant makes r hold after check has admitted it.
func (l *lockEntry) grant(r *driver.Request, own int, now time.Duration) driver.Grant {
	if i := find(l.queue, r.Owner); i >= 0 {
		l.queue = slices.Delete(l.queue, i, i+1)
	}
	g := driver.Grant{Fence: l.fence + 1, Fences: span(r), TTL: r.TTL}
	l.fence = g.Last()
	l.limit = r.Limit
	e := entry{owner: r.Owner, mode: r.Mode, fence: g.Fence, since: now, until: now + r.TTL, meta: r.Meta, onRevoke: r.OnRevoke}
	if own < 0 {
		l.holders = append(l.holders, e)
		return g
	}
	old := l.holders[own]
	e.since, e.revoked, e.until = old.since, old.revoked, max(e.until, old.until)
	l.holders[own] = e
	if e.mode != old.mode {
		l.notifyAdmitted()
	}
	return g
}

// span returns the number of fences of a grant.
func span(r *driver.Request) uint64 {
	if !r.Mode.Alone() {
		return 1
	}
	return min(max(r.Fences, 1), 1<<31)
}

// enqueue gives r a place in the queue, or prolongs the one that it has.
func (l *lockEntry) enqueue(r *driver.Request, now time.Duration) {
	l.limit = r.Limit
	if i := find(l.queue, r.Owner); i >= 0 {
		l.queue[i].until = now + r.TTL
		return
	}
	l.queue = append(l.queue, entry{owner: r.Owner, mode: r.Mode, since: now, until: now + r.TTL, meta: r.Meta})
}

func (l *lockEntry) renew(h *driver.Hold, now time.Duration) error {
	i := find(l.holders, h.Owner)
	if i < 0 {
		return lost(h.Name)
	}
	l.fence = max(l.fence, h.Floor)
	l.holders[i].until = max(l.holders[i].until, now+h.TTL)
	return nil
}

func (l *lockEntry) release(name, owner string) error {
	if i := find(l.holders, owner); i >= 0 {
		l.holders = slices.Delete(l.holders, i, i+1)
	} else if i := find(l.queue, owner); i >= 0 {
		l.queue = slices.Delete(l.queue, i, i+1)
	} else {
		return lost(name)
	}
	l.notifyAdmitted()
	return nil
}

// notifyAdmitted signals the watchers whose request would be granted now.
func (l *lockEntry) notifyAdmitted() {
	for _, w := range l.watchers {
		if l.admits(w.owner, w.mode, w.limit) {
			w.ready.Notify()
		}
	}
}

// revoke returns the OnRevoke function of h.Owner; nil if it was called before.
func (l *lockEntry) revoke(h driver.Hold) (func(), error) {
	i := find(l.holders, h.Owner)
	switch {
	case i < 0:
		return nil, lost(h.Name)
	case l.holders[i].onRevoke == nil:
		return nil, fmt.Errorf("memlock: %w: the holder of %s does not accept revocation", driver.ErrUnsupported, driver.Quote(h.Name))
	case l.holders[i].revoked:
		return nil, nil
	}
	l.holders[i].revoked = true
	return l.holders[i].onRevoke, nil
}

func lost(name string) error {
	return fmt.Errorf("memlock: %s: %w", driver.Quote(name), driver.ErrLost)
}

// describe returns e as Inspect and refusals report it.
func (e entry) describe(now time.Duration) driver.Holder {
	return driver.Holder{
		Owner: e.owner, Mode: e.mode, Fence: e.fence,
		Held: now - e.since, Left: e.until - now,
		Meta: maps.Clone(e.meta),
	}
}
