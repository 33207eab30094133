package memlock

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/distlock/distlock/driver"
)

// maxFence keeps fences in a signed 64-bit number, with room for the last span.
const maxFence = 1<<63 - 1<<32

// claim is a hold or a place in line. Its times are instants of the store.
type claim struct {
	owner        string
	mode         driver.Mode
	asked        bool   // onRevoke was called
	fence        uint64 // 0 in line
	since, until time.Duration
	meta         map[string]string
	onRevoke     func()
}

// lock is what is known of a name. Its shard's mutex guards it.
type lock struct {
	fence   uint64 // greatest ever given
	limit   int    // of the Counted claims
	holders []claim
	line    []claim
	watches []*watch
}

func (l *lock) idle() bool { return len(l.holders)+len(l.line)+len(l.watches) == 0 }

// sweep drops what has ended.
func (l *lock) sweep(now time.Duration) {
	dead := func(c claim) bool { return c.until <= now }
	l.holders = slices.DeleteFunc(l.holders, dead)
	l.line = slices.DeleteFunc(l.line, dead)
}

func find(claims []claim, owner string) int {
	for i := range claims {
		if claims[i].owner == owner {
			return i
		}
	}
	return -1
}

func (l *lock) acquire(r *driver.Request, now time.Duration) (driver.Grant, error) {
	mine, err := l.judge(r, now)
	if err == nil {
		return l.grant(r, mine, now), nil
	}
	if r.Queue && errors.Is(err, driver.ErrHeld) {
		l.stand(r, now)
	}
	return driver.Grant{}, err
}

// judge says why r can't hold now, or which of the holders it is already; -1: none.
func (l *lock) judge(r *driver.Request, now time.Duration) (mine int, err error) {
	l.sweep(now)
	if err := l.agrees(r); err != nil {
		return -1, err
	}
	mine = find(l.holders, r.Owner)
	switch {
	case mine < 0 && !l.admits(r.Owner, r.Mode, r.Limit):
		return -1, l.refusal(r, now)
	case mine >= 0 && l.holders[mine].mode == driver.Read && r.Mode == driver.Write:
		return -1, fmt.Errorf("%w: a read hold can't become a write hold", driver.ErrUnsupported)
	case l.fence >= maxFence:
		return -1, fmt.Errorf("%w: %s has used up its fences", driver.ErrInvalid, driver.Quote(r.Name))
	}
	return mine, nil
}

// agrees refuses what can't go with those who hold or wait.
func (l *lock) agrees(r *driver.Request) error {
	var seen *claim
	switch {
	case len(l.holders) > 0:
		seen = &l.holders[0]
	case len(l.line) > 0:
		seen = &l.line[0]
	default:
		return nil
	}
	if !seen.mode.SameKind(r.Mode) {
		return fmt.Errorf("%w: %s is in use as %v, asked for as %v", driver.ErrInvalid, driver.Quote(r.Name), seen.mode, r.Mode)
	}
	if r.Mode == driver.Counted && r.Limit != l.limit {
		return fmt.Errorf("%w: %s is in use with limit %d, asked for with %d", driver.ErrInvalid, driver.Quote(r.Name), l.limit, r.Limit)
	}
	return nil
}

// excludes reports whether a claim keeps out a request that comes after it. For
// permits it means: counts against the limit.
func excludes(claim, request driver.Mode) bool {
	return claim != driver.Read || request != driver.Read
}

// admits reports whether there is room beside the holders and those ahead in line.
func (l *lock) admits(owner string, mode driver.Mode, limit int) bool {
	inWay := 0
	for i := range l.holders {
		if excludes(l.holders[i].mode, mode) {
			inWay++
		}
	}
	for i := range l.ahead(owner) {
		if excludes(l.line[i].mode, mode) {
			inWay++
		}
	}
	return inWay < room(mode, limit)
}

// ahead is the part of the line before owner; all of it if owner has no place.
func (l *lock) ahead(owner string) []claim {
	if i := find(l.line, owner); i >= 0 {
		return l.line[:i]
	}
	return l.line
}

func room(mode driver.Mode, limit int) int {
	if mode == driver.Counted {
		return limit
	}
	return 1
}

// grant enters what judge has let in.
func (l *lock) grant(r *driver.Request, mine int, now time.Duration) driver.Grant {
	if i := find(l.line, r.Owner); i >= 0 {
		l.line = slices.Delete(l.line, i, i+1)
	}
	g := driver.Grant{Fence: l.fence + 1, Fences: l.span(r), Queued: len(l.line) > 0, TTL: r.TTL}
	l.fence = g.Last()
	l.limit = r.Limit
	c := claim{owner: r.Owner, mode: r.Mode, fence: g.Fence, since: now, until: now + r.TTL, meta: r.Meta, onRevoke: r.OnRevoke}
	if mine < 0 {
		l.holders = append(l.holders, c)
		return g
	}
	old := l.holders[mine]
	c.since, c.asked, c.until = old.since, old.asked, max(c.until, old.until)
	l.holders[mine] = c
	if c.mode != old.mode {
		l.wake()
	}
	return g
}

// span is how many fences a grant gets: one where others stand in line or the owner
// itself asked for a place, since those are not to be passed by a hand-off.
func (l *lock) span(r *driver.Request) uint64 {
	if !r.Mode.Alone() || r.Queue || len(l.line) > 0 {
		return 1
	}
	return min(max(r.Fences, 1), 1<<31)
}

// stand gives r a place in line, or keeps the one it has for another TTL.
func (l *lock) stand(r *driver.Request, now time.Duration) {
	l.limit = r.Limit
	if i := find(l.line, r.Owner); i >= 0 {
		l.line[i].until = now + r.TTL
		return
	}
	l.line = append(l.line, claim{owner: r.Owner, mode: r.Mode, since: now, until: now + r.TTL, meta: r.Meta})
}

func (l *lock) renew(h *driver.Hold, now time.Duration) error {
	i := find(l.holders, h.Owner)
	if i < 0 {
		return lost(h.Name)
	}
	l.fence = max(l.fence, h.Floor)
	until := now + h.TTL
	if !h.Shorten {
		until = max(until, l.holders[i].until)
	}
	shorter := until < l.holders[i].until
	l.holders[i].until = until
	if shorter {
		l.wakeAll()
	}
	return nil
}

func (l *lock) release(name, owner string, now time.Duration) error {
	if i := find(l.holders, owner); i >= 0 {
		l.holders = slices.Delete(l.holders, i, i+1)
	} else if i := find(l.line, owner); i >= 0 {
		l.line = slices.Delete(l.line, i, i+1)
	} else {
		return lost(name)
	}
	l.wake()
	return nil
}
