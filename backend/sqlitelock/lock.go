package sqlitelock

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/distlock/distlock/driver"
)

// claim is one owner's hold, or its place in line.
type claim struct {
	owner        string
	mode         driver.Mode
	ticket       int64 // the place's number in line; 0: a hold
	fence        int64 // of the hold; 0: a place
	since, until int64
	meta         string
}

func (c claim) holds() bool { return c.fence > 0 }

func (c claim) info(now int64) driver.Holder {
	h := driver.Holder{
		Owner: c.owner, Mode: c.mode, Fence: uint64(c.fence),
		// A grant may be younger than the look at the clock before it was read.
		Held: time.Duration(max(now-c.since, 0)), Left: time.Duration(c.until - now),
	}
	if c.meta != "" {
		// Meta that somebody else wrote is not worth failing for.
		_ = json.Unmarshal([]byte(c.meta), &h.Meta)
	}
	return h
}

// lock is what the file knows of one name.
type lock struct {
	kind   driver.Mode // Exclusive, Write or Counted; Write stands for Read too
	limit  int
	number int64   // of the last grant, see number
	claims []claim // the living: holds, then places in their order
	dead   int     // claims that ended by the clock and are not buried
	swept  int64
}

// sqlLook reads all of a name at once. No row: the file has gone over to another boot.
const sqlLook = `
SELECT m.swept, coalesce(l.kind, 0), coalesce(l.lim, 0), coalesce(l.number, 0),
       c.owner, c.mode, c.ticket, c.fence, c.since, c.until, c.meta
FROM meta m LEFT JOIN locks l ON l.name = ?1 LEFT JOIN claims c ON c.name = ?1
WHERE m.boot = ?2`

// look reads name as of now.
func look(ctx context.Context, stmt *sql.Stmt, name, boot string, now int64) (*lock, error) {
	rows, err := stmt.QueryContext(ctx, name, boot)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var l *lock
	for rows.Next() {
		if l == nil {
			l = &lock{}
		}
		if err := l.scan(rows, now); err != nil {
			return nil, err
		}
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	if l == nil {
		return nil, errAnotherBoot
	}
	l.sort()
	return l, nil
}

var errAnotherBoot = errors.New("a process on another host or boot has taken the lock file over; it must be used on one host only")

func (l *lock) scan(rows *sql.Rows, now int64) error {
	var c claim
	var owner, meta sql.NullString
	var mode, ticket, fence, since, until sql.NullInt64
	err := rows.Scan(&l.swept, &l.kind, &l.limit, &l.number, &owner, &mode, &ticket, &fence, &since, &until, &meta)
	if err != nil || !owner.Valid {
		return err
	}
	if until.Int64 <= now {
		l.dead++
		return nil
	}
	c.owner, c.mode, c.ticket, c.fence = owner.String, driver.Mode(mode.Int64), ticket.Int64, fence.Int64
	c.since, c.until, c.meta = since.Int64, until.Int64, meta.String
	l.claims = append(l.claims, c)
	return nil
}

// sort puts the holds, whose tickets are 0, by their fences before the line.
func (l *lock) sort() {
	slices.SortFunc(l.claims, func(a, b claim) int {
		return cmp.Or(cmp.Compare(a.ticket, b.ticket), cmp.Compare(a.fence, b.fence))
	})
}

func (l *lock) claim(owner string) (claim, bool) {
	i := slices.IndexFunc(l.claims, func(c claim) bool { return c.owner == owner })
	if i < 0 {
		return claim{}, false
	}
	return l.claims[i], true
}

// kindOf is the kind of lock that a mode belongs to.
func kindOf(m driver.Mode) driver.Mode {
	if m == driver.Read {
		return driver.Write
	}
	return m
}

// check refuses what can never be granted as long as anybody claims the lock.
func (l *lock) check(r driver.Request) error {
	if len(l.claims) == 0 {
		return nil
	}
	if l.kind != kindOf(r.Mode) {
		return fmt.Errorf("%w: the name is in use for another kind of lock (%v, not %v)", driver.ErrInvalid, l.kind, r.Mode)
	}
	if r.Mode == driver.Counted && l.limit != r.Limit {
		return fmt.Errorf("%w: the semaphore is in use with limit %d, not %d", driver.ErrInvalid, l.limit, r.Limit)
	}
	if own, ok := l.claim(r.Owner); ok && own.holds() && own.mode == driver.Read && r.Mode == driver.Write {
		return fmt.Errorf("%w: a read hold can't become a write hold", driver.ErrUnsupported)
	}
	return nil
}

// blockers are the claims that keep r out; none: r may hold. A claim behind r's own
// place in line is no obstacle, one ahead of it is even if it is a place.
func (l *lock) blockers(r driver.Request) []claim {
	own, known := l.claim(r.Owner)
	if known && own.holds() {
		return nil
	}
	var ahead []claim
	for _, c := range l.claims {
		behind := known && c.ticket >= own.ticket
		share := r.Mode == driver.Read && c.mode == driver.Read
		if !behind && !share {
			ahead = append(ahead, c)
		}
	}
	if r.Mode == driver.Counted && len(ahead) < r.Limit {
		return nil
	}
	return ahead
}

// queued reports whether others than owner stand in line.
func (l *lock) queued(owner string) bool {
	return slices.ContainsFunc(l.claims, func(c claim) bool { return !c.holds() && c.owner != owner })
}

// lastTicket is the greatest ticket in line.
func (l *lock) lastTicket() int64 {
	if n := len(l.claims); n > 0 {
		return l.claims[n-1].ticket
	}
	return 0
}
