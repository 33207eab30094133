// Package claims decides who gets a lock, for backends that keep a list of its holders and waiters
// and can change that list atomically: a file, a row of a table. It has no clock and sends no
// requests.
package claims

import (
	"cmp"
	"database/sql"
	"encoding/json"
	"fmt"
	"maps"
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
	Place        int64  // its number in the queue; 0: a hold
	Fence        int64  // of the hold; 0: a place
	Since, Until int64  // Since 0: not known; Until may be Forever
	Meta         string // JSON; "": none
	Address      string // where its end can be heard of, for backends that keep this

	// Only a store in memory has these.
	Decoded  map[string]string // instead of Meta
	OnRevoke func()
}

// Forever is the end of a claim without an end: the last whole µs.
const Forever = math.MaxInt64 / 1000 * 1000

// Holds reports whether c is a hold and not a place in the queue.
func (c *Claim) Holds() bool { return c.Fence > 0 }

// Info describes c as of now.
func (c *Claim) Info(now int64) driver.Holder {
	h := driver.Holder{
		Owner: c.Owner, Mode: c.Mode, Fence: uint64(c.Fence),
		// A grant may be younger than the look at the clock before it was read.
		Held: time.Duration(max(now-c.Since, 0)), Left: time.Duration(c.Until - now),
		Meta: maps.Clone(c.Decoded),
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

// request is the attempt that c's owner would make.
func (c *Claim) request(limit int) driver.Request {
	return driver.Request{Hold: driver.Hold{Owner: c.Owner, Mode: c.Mode}, Limit: limit}
}

// Lock is the state of one name.
type Lock struct {
	Kind   driver.Mode // of the last grant: Exclusive, Write or Counted; Write stands for Read too
	Limit  int         // of the permits that are held or waited for
	Number int64       // of the last grant, see Next
	Claims []Claim     // holds, then places in their order; see Sort and Expire
}

func order(a, b Claim) int {
	return cmp.Or(cmp.Compare(a.Place, b.Place), cmp.Compare(a.Fence, b.Fence))
}

// Sort puts the holds, whose place is 0, before the queue.
func (l *Lock) Sort() { slices.SortFunc(l.Claims, order) }

// Expire removes the claims that have ended, and returns their number. A place that has ended is the end of its client, as
// far as others can tell: the client's places of that time behind it, which ask again soon, live for TurnLife more, unless they
// do. It returns these, too.
func (l *Lock) Expire(now int64) (ended int, sooner []Claim) {
	var gone map[string]int64 // when the last place of each such client ended that is ahead
	for i := range l.Claims {
		c := &l.Claims[i]
		switch at := gone[c.client()]; {
		case c.Until <= now && !c.Holds() && c.client() != "":
			if gone == nil {
				gone = map[string]int64{}
			}
			gone[c.client()] = max(at, c.Until)
		case c.Since < at && c.endBy(at+int64(driver.TurnLife)):
			sooner = append(sooner, *c)
		}
	}
	before := len(l.Claims)
	l.Claims = slices.DeleteFunc(l.Claims, func(c Claim) bool { return c.Until <= now })
	return before - len(l.Claims), sooner
}

// client returns what the Owners of one client have in common; "" if that is not known.
func (c *Claim) client() string {
	if len(c.Owner) <= driver.OwnersStart {
		return ""
	}
	return c.Owner[:driver.OwnersStart]
}

// endBy ends a place at some time, and reports whether that is sooner than before.
func (c *Claim) endBy(end int64) bool {
	if c.Holds() || c.Until <= end {
		return false
	}
	c.Until = end
	return true
}

func (l *Lock) index(owner string) int {
	return slices.IndexFunc(l.Claims, func(c Claim) bool { return c.Owner == owner })
}

// Claim returns the owner's claim, until the next change; nil: it has none.
func (l *Lock) Claim(owner string) *Claim {
	if i := l.index(owner); i >= 0 {
		return &l.Claims[i]
	}
	return nil
}

// Hold returns the owner's hold, until the next change; nil: it has none.
func (l *Lock) Hold(owner string) *Claim {
	if c := l.Claim(owner); c != nil && c.Holds() {
		return c
	}
	return nil
}

// Remove ends the owner's claim, and reports whether it had one.
func (l *Lock) Remove(owner string) bool {
	i := l.index(owner)
	if i < 0 {
		return false
	}
	l.Claims = slices.Delete(l.Claims, i, i+1)
	return true
}

// put replaces the owner's claim, or adds one.
func (l *Lock) put(c Claim) {
	l.Remove(c.Owner)
	i, _ := slices.BinarySearchFunc(l.Claims, c, order)
	l.Claims = slices.Insert(l.Claims, i, c)
}

// KindOf returns the kind of lock that a mode belongs to.
func KindOf(m driver.Mode) driver.Mode {
	if m == driver.Read {
		return driver.Write
	}
	return m
}

// Info describes the lock called name as of now.
func (l *Lock) Info(name string, now int64) driver.Info {
	i := driver.Info{Name: name}
	for n := range l.Claims {
		if c := &l.Claims[n]; c.Holds() {
			i.Holders = append(i.Holders, c.Info(now))
		} else {
			i.Waiters = append(i.Waiters, c.Info(now))
		}
	}
	i.WaiterCount = len(i.Waiters)
	if len(i.Holders) > 0 {
		i.Mode = i.Holders[0].Mode
	}
	if i.Mode == driver.Counted {
		i.Limit = l.Limit
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
