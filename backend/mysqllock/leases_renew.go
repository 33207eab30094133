package mysqllock

import (
	"context"
	"database/sql"
	"fmt"
	"strings"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/claims"
)

// Holds are renewed many at a time, by statements for one, for eight and for sixty-four:
// a chunk in between repeats its last hold.
var chunkSizes = [...]int{1, 8, 64}

// chunks are the statements about so many holds.
type chunks [len(chunkSizes)]struct{ renew, living *sql.Stmt }

// prepareRenewals makes the statements of all chunks.
func (l *leases) prepareRenewals(ctx context.Context) error {
	for i, size := range chunkSizes {
		these := " WHERE (" + strings.Repeat("name = ? AND owner = ? OR ", size-1) + "name = ? AND owner = ?) AND " + live
		if err := l.stmt(ctx, &l.renewals[i].renew, "UPDATE "+l.table+" SET "+l.bump+"expires = "+endSQL("expires")+these); err != nil {
			return err
		}
		if err := l.stmt(ctx, &l.renewals[i].living, "SELECT name, owner FROM "+l.table+these); err != nil {
			return err
		}
	}
	return nil
}

// Renew restarts the TTL of holds.
func (l *leases) Renew(ctx context.Context, holds []driver.Hold) []error {
	answers := make([]error, len(holds))
	byTTL := map[int64][]int{}
	for i, h := range holds {
		err := l.checkRenewal(h)
		if err == nil && h.Floor > 0 {
			err = l.raiseTo(ctx, h)
		}
		if err != nil {
			answers[i] = l.wrap("renew", h.Name, err)
			continue
		}
		byTTL[micros(h.TTL)] = append(byTTL[micros(h.TTL)], i)
	}
	for ttl, indices := range byTTL {
		for len(indices) > 0 {
			n := min(len(indices), chunkSizes[len(chunkSizes)-1])
			l.renewChunk(ctx, ttl, holds, indices[:n], answers)
			indices = indices[n:]
		}
	}
	return answers
}

func (l *leases) checkRenewal(h driver.Hold) error {
	if err := l.check(h); err != nil {
		return err
	}
	if h.Floor>>claims.SpanBits > claims.MaxNumber {
		return fmt.Errorf("%w: floor %d is no fence: want less than 1<<63", driver.ErrInvalid, h.Floor)
	}
	return checkTTL(h.TTL)
}

// renewChunk renews the holds at indices and answers them. Only if fewer rows changed
// than were meant it asks which.
func (l *leases) renewChunk(ctx context.Context, ttl int64, holds []driver.Hold, indices []int, answers []error) {
	size := 0
	for chunkSizes[size] < len(indices) {
		size++
	}
	args := make([]any, 0, 2*chunkSizes[size]+1)
	for i := range chunkSizes[size] {
		h := holds[indices[min(i, len(indices)-1)]]
		args = append(args, h.Name, h.Owner)
	}
	stmts := l.renewals[size]
	n, err := l.run(ctx, stmts.renew, append([]any{ttl, ttl}, args...)...)
	if err == nil && n == int64(len(indices)) {
		return
	}
	alive := map[[2]string]bool{}
	if err == nil && n > 0 {
		alive, err = living(ctx, stmts.living, args)
	}
	for _, i := range indices {
		h := holds[i]
		if err == nil && !alive[[2]string{h.Name, h.Owner}] {
			answers[i] = l.wrap("renew", h.Name, driver.ErrLost)
		} else {
			answers[i] = l.wrap("renew", h.Name, err)
		}
	}
}

// living are those holds that last: whichever lasts now did so a moment ago, when it
// was renewed.
func living(ctx context.Context, stmt *sql.Stmt, args []any) (map[[2]string]bool, error) {
	rows, err := stmt.QueryContext(ctx, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	alive := map[[2]string]bool{}
	for rows.Next() {
		var name, owner string
		if err := rows.Scan(&name, &owner); err != nil {
			return nil, err
		}
		alive[[2]string{name, owner}] = true
	}
	return alive, rows.Err()
}

// raiseTo makes later fences greater than h's floor, if h holds. If it does not, its
// renewal will tell.
func (l *leases) raiseTo(ctx context.Context, h driver.Hold) error {
	_, err := l.run(ctx, l.raise, append([]any{int64(h.Floor >> claims.SpanBits)}, l.twofold(h.Name, h.Owner)...)...)
	return err
}
