// Package claims decides who gets a lock, for backends that keep a list of its holders and waiters
// and can change that list atomically: a file, a row of a table. It has no clock and sends no
// requests.
package claims

import (
	"cmp"
	"database/sql"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/distlock/distlock/driver"
)

// Claim is a hold, or a place in the queue. Times are in ns by the clock of the backend.
type Claim struct {
	Owner        string
	Mode         driver.Mode
	Ticket       int64  // the place's number in line; 0: a hold
	Fence        int64  // of the hold; 0: a place
	Since, Until int64  // Since 0: not known; Until may be Forever
	Meta         string // JSON; "": none
	Address      string // where its end can be heard of, for backends that keep this
}

// Forever is the end of a claim without an end: the last whole µs.
const Forever = math.MaxInt64 / 1000 * 1000

// Holds reports whether c is a hold and not a place in the queue.
func (c Claim) Holds() bool { return c.Fence > 0 }

// Info describes c as of now.
func (c Claim) Info(now int64) driver.Holder {
	h := driver.Holder{
		Owner: c.Owner, Mode: c.Mode, Fence: uint64(c.Fence),
		// A grant may be younger than the look at the clock before it was read.
		Held: time.Duration(max(now-c.Since, 0)), Left: time.Duration(c.Until - now),
	}
	if c.Since == 0 {
		h.Held = -1
	}
	if c.Until == Forever {
		h.Left = -1
	}
	if c.Meta != "" {
		// Another program may have written any text.
		_ = json.Unmarshal([]byte(c.Meta), &h.Meta)
	}
	return h
}

// Lock is the state of one name.
type Lock struct {
	Kind   driver.Mode // Exclusive, Write or Counted; Write stands for Read too
	Limit  int
	Number int64   // of the last grant, see Next
	Claims []Claim // the living: holds, then places in their order; see Sort
}

// Sort puts the holds, whose tickets are 0, before the queue.
func (l *Lock) Sort() {
	slices.SortFunc(l.Claims, func(a, b Claim) int {
		return cmp.Or(cmp.Compare(a.Ticket, b.Ticket), cmp.Compare(a.Fence, b.Fence))
	})
}

// Claim returns the owner's claim.
func (l *Lock) Claim(owner string) (Claim, bool) {
	i := slices.IndexFunc(l.Claims, func(c Claim) bool { return c.Owner == owner })
	if i < 0 {
		return Claim{}, false
	}
	return l.Claims[i], true
}

// KindOf returns the kind of lock that a mode belongs to.
func KindOf(m driver.Mode) driver.Mode {
	if m == driver.Read {
		return driver.Write
	}
	return m
}

// Check refuses a request that can't be granted as long as the lock has other claims.
func (l *Lock) Check(r driver.Request) error {
	if len(l.Claims) == 0 {
		return nil
	}
	if l.Kind != KindOf(r.Mode) {
		return fmt.Errorf("%w: the name is in use for another kind of lock (%v, not %v)", driver.ErrInvalid, l.Kind, r.Mode)
	}
	if r.Mode == driver.Counted && l.Limit != r.Limit {
		return fmt.Errorf("%w: the semaphore is in use with limit %d, not %d", driver.ErrInvalid, l.Limit, r.Limit)
	}
	if own, ok := l.Claim(r.Owner); ok && own.Holds() && own.Mode == driver.Read && r.Mode == driver.Write {
		return fmt.Errorf("%w: a read hold can't become a write hold", driver.ErrUnsupported)
	}
	return nil
}

// Blockers returns the claims that block r; r may hold if there are none. A place in the queue
// blocks r only if it is ahead of r's own.
func (l *Lock) Blockers(r driver.Request) []Claim {
	own, known := l.Claim(r.Owner)
	if known && own.Holds() {
		return nil
	}
	var ahead []Claim
	for _, c := range l.Claims {
		behind := known && c.Ticket >= own.Ticket
		share := r.Mode == driver.Read && c.Mode == driver.Read
		if !behind && !share {
			ahead = append(ahead, c)
		}
	}
	if r.Mode == driver.Counted && len(ahead) < r.Limit {
		return nil
	}
	return ahead
}

// LimitTurn ends the first place in the queue after TurnLife if nothing but its owner's absence keeps it
// from holding. It returns the place if that changed it.
func (l *Lock) LimitTurn(now int64) *Claim {
	i := slices.IndexFunc(l.Claims, func(c Claim) bool { return !c.Holds() })
	if i < 0 || l.Claims[i].Until <= now+int64(driver.TurnLife) {
		return nil
	}
	first := &l.Claims[i]
	if len(l.Blockers(driver.Request{Hold: driver.Hold{Owner: first.Owner, Mode: first.Mode}, Limit: l.Limit})) > 0 {
		return nil
	}
	first.Until = now + int64(driver.TurnLife)
	return first
}

// LetsIn returns the places in the queue whose owners may hold now, and whether an owner without a place
// may hold too. Behind a place that is blocked, all are.
func (l *Lock) LetsIn() (places []Claim, others bool) {
	others = true
	for _, c := range l.Claims {
		if c.Holds() {
			continue
		}
		if len(l.Blockers(driver.Request{Hold: driver.Hold{Owner: c.Owner, Mode: c.Mode}, Limit: l.Limit})) > 0 {
			return places, false
		}
		places = append(places, c)
		others = others && !c.Mode.Alone()
	}
	return places, others
}

// PlaceLife is how long a place lives that is written now. It exceeds a long TTL, so that few of the
// waiter's attempts have to write it again: a place that is Fresh stays.
func PlaceLife(ttl time.Duration) time.Duration {
	return ttl + max(0, min(ttl/2, ttl-2*driver.TurnLife))
}

// Fresh reports whether a place lives for at least ttl from now on.
func (c Claim) Fresh(ttl time.Duration, now int64) bool { return c.Until >= now+int64(ttl) }

// NextTicket returns the ticket of a new place in the queue.
func (l *Lock) NextTicket() int64 {
	if n := len(l.Claims); n > 0 {
		return l.Claims[n-1].Ticket + 1
	}
	return 1
}

// Refusal returns the error for a request that the claims ahead block.
func Refusal(ahead []Claim, now int64) error {
	e := &driver.HeldError{}
	first := ahead[0].Until
	for _, c := range ahead {
		first = min(first, c.Until)
		if c.Holds() || !ahead[0].Holds() {
			e.Holders = append(e.Holders, c.Info(now))
		}
	}
	if first < Forever {
		e.Retry = time.Duration(first - now)
	}
	return e
}

// Info describes the lock called name as of now.
func (l *Lock) Info(name string, now int64) driver.Info {
	i := driver.Info{Name: name}
	for _, c := range l.Claims {
		if c.Holds() {
			i.Holders = append(i.Holders, c.Info(now))
		} else {
			i.Waiters = append(i.Waiters, c.Info(now))
		}
	}
	i.WaiterCount = len(i.Waiters)
	if len(i.Holders) > 0 {
		i.Mode, i.Limit = i.Holders[0].Mode, l.Limit
	}
	return i
}

// A fence is a grant's number followed by SpanBits bits for the hand-offs inside its process. The
// number is one more than the last, and at least the clock in µs since 1970, so it increases even if
// the store is lost. Fences stay below 1<<63 until the year 2255.
const (
	SpanBits  = 10
	Span      = 1 << SpanBits
	MaxNumber = 1<<(63-SpanBits) - 1
)

// Next returns the number of the next grant; wall is the clock in µs since 1970.
func (l *Lock) Next(wall int64) (int64, error) {
	n := max(l.Number+1, wall)
	if n > MaxNumber {
		return 0, fmt.Errorf("%w: the fences of this name are used up", driver.ErrInvalid)
	}
	return n, nil
}

// Fences returns how many fences of a span r gets: one for shared holds, which are never handed off.
func Fences(r driver.Request) uint64 {
	if !r.Mode.Alone() {
		return 1
	}
	return min(max(r.Fences, 1), Span)
}

const (
	// MinTTL is about the longest that one write to a slow disk takes. A shorter hold would end
	// before its grant is known.
	MinTTL = 10 * time.Millisecond

	// MaxTTL keeps the sum of a clock and a TTL far from overflow.
	MaxTTL = 100 * 365 * 24 * time.Hour
)

// ListPage is how many names List reads at a time, so that old versions of rows are not kept while
// the caller handles names.
const ListPage = 512

// Pages yields the names with the prefix, in their order, until yield returns false. page
// reads the next ListPage names after one, from the prefix on.
func Pages(prefix string, page func(after string) ([]string, error), yield func(name string) bool) error {
	for after := ""; ; {
		names, err := page(after)
		if err != nil {
			return err
		}
		for _, name := range names {
			if !strings.HasPrefix(name, prefix) || !yield(name) {
				return nil
			}
		}
		if len(names) < ListPage {
			return nil
		}
		after = names[len(names)-1]
	}
}

// ScanNames reads rows of one column, and closes them.
func ScanNames(rows *sql.Rows) ([]string, error) {
	defer rows.Close()
	var names []string
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			return nil, err
		}
		names = append(names, name)
	}
	return names, rows.Err()
}
