// Package claims decides who gets a lock, for backends that keep a list of all who hold it
// or stand in line for it and can change it as one: a file, a row of a table. It has no
// clock and asks nobody.
package claims

import (
	"cmp"
	"database/sql"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/distlock/distlock/driver"
)

// Claim is one owner's hold, or its place in line. Times are in ns by the clock of whoever
// keeps the claims.
type Claim struct {
	Owner        string
	Mode         driver.Mode
	Ticket       int64 // the place's number in line; 0: a hold
	Fence        int64 // of the hold; 0: a place
	Since, Until int64
	Meta         string // JSON, see EncodeMeta
	Address      string // where its end can be heard of, for backends that keep this
}

// Holds reports whether c is a hold and not a place.
func (c Claim) Holds() bool { return c.Fence > 0 }

// Info tells of c as of now.
func (c Claim) Info(now int64) driver.Holder {
	h := driver.Holder{
		Owner: c.Owner, Mode: c.Mode, Fence: uint64(c.Fence),
		// A grant may be younger than the look at the clock before it was read.
		Held: time.Duration(max(now-c.Since, 0)), Left: time.Duration(c.Until - now),
	}
	if c.Meta != "" {
		// Meta that somebody else wrote is not worth failing for.
		_ = json.Unmarshal([]byte(c.Meta), &h.Meta)
	}
	return h
}

// Lock is what is known of one name.
type Lock struct {
	Kind   driver.Mode // Exclusive, Write or Counted; Write stands for Read too
	Limit  int
	Number int64   // of the last grant, see Next
	Claims []Claim // the living: holds, then places in their order; see Sort
}

// Sort puts the holds, whose tickets are 0, by their fences before the line.
func (l *Lock) Sort() {
	slices.SortFunc(l.Claims, func(a, b Claim) int {
		return cmp.Or(cmp.Compare(a.Ticket, b.Ticket), cmp.Compare(a.Fence, b.Fence))
	})
}

// Claim is the owner's, if it has one.
func (l *Lock) Claim(owner string) (Claim, bool) {
	i := slices.IndexFunc(l.Claims, func(c Claim) bool { return c.Owner == owner })
	if i < 0 {
		return Claim{}, false
	}
	return l.Claims[i], true
}

// KindOf is the kind of lock that a mode belongs to.
func KindOf(m driver.Mode) driver.Mode {
	if m == driver.Read {
		return driver.Write
	}
	return m
}

// Check refuses what can never be granted as long as anybody claims the lock.
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

// Blockers are the claims that keep r out; none: r may hold. A claim behind r's own
// place in line is no obstacle, one ahead of it is even if it is a place.
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

// Queued reports whether others than owner stand in line.
func (l *Lock) Queued(owner string) bool {
	return slices.ContainsFunc(l.Claims, func(c Claim) bool { return !c.Holds() && c.Owner != owner })
}

// NextTicket is that of a new place in line.
func (l *Lock) NextTicket() int64 {
	if n := len(l.Claims); n > 0 {
		return l.Claims[n-1].Ticket + 1
	}
	return 1
}

// Refusal words that the claims ahead keep a request out.
func Refusal(ahead []Claim, now int64) error {
	e := &driver.HeldError{}
	first := ahead[0].Until
	for _, c := range ahead {
		first = min(first, c.Until)
		if c.Holds() || !ahead[0].Holds() {
			e.Holders = append(e.Holders, c.Info(now))
		}
	}
	e.Retry = time.Duration(first - now)
	return e
}

// Info tells of the lock called name as of now.
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

// A fence is a grant's number followed by SpanBits bits for the hand-offs inside its
// process. The number is one more than the last, and at least the clock in µs since
// 1970: so it increases over a lost store too. Fences stay below 1<<63, and room is
// left for them until the year 2255.
const (
	SpanBits  = 10
	Span      = 1 << SpanBits
	MaxNumber = 1<<(63-SpanBits) - 1
)

// Next is the number of the next grant; wall is the clock in µs since 1970.
func (l *Lock) Next(wall int64) (int64, error) {
	n := max(l.Number+1, wall)
	if n > MaxNumber {
		return 0, fmt.Errorf("%w: the fences of this name are used up", driver.ErrInvalid)
	}
	return n, nil
}

// Fences is how many fences of a span r gets: one where somebody stands in line, and
// for shared holds, which are never handed on.
func (l *Lock) Fences(r driver.Request) uint64 {
	if !r.Mode.Alone() || l.Queued(r.Owner) {
		return 1
	}
	return min(max(r.Fences, 1), Span)
}

const (
	// MinTTL is about the longest that one write to a slow disk takes: what is shorter
	// would end before it is known.
	MinTTL = 10 * time.Millisecond

	// MaxTTL keeps the sum of a clock and a TTL far from overflow.
	MaxTTL = 100 * 365 * 24 * time.Hour
)

// CheckRequest refuses what the core never asks for.
func CheckRequest(r driver.Request) error {
	switch {
	case r.Mode == 0 || !driver.AllModes.Has(r.Mode):
		return fmt.Errorf("%w: mode %v", driver.ErrUnsupported, r.Mode)
	case r.Name == "" || r.Owner == "":
		return fmt.Errorf("%w: a request needs a name and an owner", driver.ErrInvalid)
	case r.Mode == driver.Counted && r.Limit < 1:
		return fmt.Errorf("%w: limit %d: want at least 1", driver.ErrInvalid, r.Limit)
	}
	return checkTTL(r.TTL)
}

// CheckRenewal refuses renewals that the core never asks for.
func CheckRenewal(h driver.Hold) error {
	if h.Floor>>SpanBits > MaxNumber {
		return fmt.Errorf("%w: floor %d is no fence: want less than 1<<63", driver.ErrInvalid, h.Floor)
	}
	return checkTTL(h.TTL)
}

func checkTTL(ttl time.Duration) error {
	if ttl <= 0 || ttl > MaxTTL {
		return fmt.Errorf("%w: TTL %v: want more than 0 and at most %v", driver.ErrInvalid, ttl, MaxTTL)
	}
	return nil
}

// EncodeMeta is meta as JSON, empty if there is none.
func EncodeMeta(meta map[string]string) (string, error) {
	if len(meta) == 0 {
		return "", nil
	}
	text, err := json.Marshal(meta)
	return string(text), err
}

// ListPage is how many names List reads at a time, so that no reader keeps old versions of
// rows alive while a caller looks at names.
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
