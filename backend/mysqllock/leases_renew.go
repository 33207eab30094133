package mysqllock

import (
	"context"
	"database/sql"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/claims"
	"github.com/distlock/distlock/internal/sqlrow"
)

// Holds are renewed many at a time, by statements for one, for eight and for sixty-four:
// a chunk in between repeats its last hold.
var chunkSizes = [...]int{1, 8, 64}

// chunks are the statements about so many holds.
type chunks [len(chunkSizes)]struct{ renew, living *sql.Stmt }

// prepareRenewals makes the statements of all chunks. A row that is locked is left out, and
// no other row is locked on the way: see sqlExtend.
func (l *leases) prepareRenewals(ctx context.Context) error {
	for i, size := range chunkSizes {
		these := " WHERE (" + strings.Repeat("name = ? AND owner = ? OR ", size-1) + "name = ? AND owner = ?) AND " + live
		from := " FROM " + l.table + " FORCE INDEX (" + l.index + ")"
		renew := l.server.updateJoin() + " (SELECT name AS id" + from + these + " LIMIT " + strconv.Itoa(size) + " FOR UPDATE " + l.server.skipLocked() + ") s" +
			" STRAIGHT_JOIN " + l.table + " FORCE INDEX (" + l.index + ") ON name = s.id SET " + l.bump + "expires = " + longerSQL("expires")
		if err := l.stmt(ctx, &l.renewals[i].renew, renew); err != nil {
			return err
		}
		if err := l.stmt(ctx, &l.renewals[i].living, "SELECT name, owner, expires, "+l.revision+from+these); err != nil {
			return err
		}
	}
	return nil
}

// extension is what a renewal asks for: what may be in one statement has the same.
type extension struct {
	ttl     int64 // µs
	floor   int64 // 0 if it is raised by another statement
	shorten bool
}

// Renew makes holds live for their TTL at least.
func (l *leases) Renew(ctx context.Context, holds []driver.Hold) []error {
	n := &renewal{l: l, ctx: ctx, holds: holds, answers: make([]error, len(holds))}
	batches := map[extension][]int{}
	for i, h := range holds {
		what, err := n.begin(h)
		if err != nil {
			n.answers[i] = err
			continue
		}
		batches[what] = append(batches[what], i)
	}
	for what, indices := range batches {
		for part := range slices.Chunk(indices, chunkSizes[len(chunkSizes)-1]) {
			n.renew(what, part)
		}
	}
	for i, err := range n.answers {
		n.answers[i] = l.wrap("renew", holds[i].Name, err)
	}
	return n.answers
}

// renewal is one call of Renew. Holds are meant by their index.
type renewal struct {
	l       *leases
	ctx     context.Context
	holds   []driver.Hold
	answers []error
}

// begin checks a hold, and raises later fences above its Floor if renewing does not.
func (n *renewal) begin(h driver.Hold) (extension, error) {
	what := extension{micros(h.TTL), int64(h.Floor >> claims.SpanBits), h.Shorten}
	err := n.l.checkRenewal(h)
	if err == nil && what.floor > 0 && n.l.raise != nil {
		err = n.l.raiseTo(n.ctx, h, what.floor)
		what.floor = 0
	}
	return what, err
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

// renew renews the holds at indices and answers them. Those whose rows are locked do not
// keep it from the others, and are tried again.
func (n *renewal) renew(what extension, indices []int) {
	for miss := range sqlrow.MaxLocked {
		err := sqlrow.Pause(n.ctx, miss)
		if err == nil {
			indices, err = n.renewOnce(what, indices)
		}
		if err != nil {
			n.answerThese(indices, err)
			return
		}
		if len(indices) == 0 {
			return
		}
	}
	n.answerThese(indices, sqlrow.ErrLocked)
}

func (n *renewal) answerThese(indices []int, err error) {
	for _, i := range indices {
		n.answers[i] = err
	}
}

// renewOnce renews what it can, and answers what is lost. Only if fewer rows changed than
// were meant it asks which. The rows of those that are left are locked.
func (n *renewal) renewOnce(what extension, indices []int) (left []int, err error) {
	size := 0
	for chunkSizes[size] < len(indices) {
		size++
	}
	args := make([]any, 0, 2*chunkSizes[size]+3)
	for i := range chunkSizes[size] {
		h := n.holds[indices[min(i, len(indices)-1)]]
		args = append(args, h.Name, h.Owner)
	}
	stmts, these := n.l.renewals[size], len(args)
	if n.l.bump != "" {
		args = append(args, what.floor)
	}
	done, until, err := n.l.change(n.ctx, stmts.renew, append(args, what.ttl, !what.shorten))
	if err != nil {
		return indices, err
	}
	if done == int64(len(indices)) {
		return nil, nil
	}
	alive, err := n.l.living(n.ctx, stmts.living, args[:these])
	if err != nil {
		return indices, err
	}
	for _, i := range indices {
		row, ok := alive[[2]string{n.holds[i].Name, n.holds[i].Owner}]
		switch {
		case !ok:
			n.answers[i] = driver.ErrLost
		case until == 0 || row.end < until || what.shorten && row.end > until || row.revision < what.floor:
			left = append(left, i)
		}
	}
	return left, nil
}

// life is what a row says of a hold that lasts.
type life struct{ end, revision int64 }

// living are those holds that last: whichever lasts now did so a moment ago, when it was
// renewed.
func (l *leases) living(ctx context.Context, stmt *sql.Stmt, args []any) (map[[2]string]life, error) {
	rows, err := stmt.QueryContext(ctx, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	alive := map[[2]string]life{}
	for rows.Next() {
		var name, owner string
		var end sql.NullInt64
		var one life
		if err := rows.Scan(&name, &owner, &end, &one.revision); err != nil {
			return nil, err
		}
		if one.end = end.Int64; !end.Valid {
			one.end = math.MaxInt64
		}
		alive[[2]string{name, owner}] = one
	}
	return alive, rows.Err()
}

// raiseTo makes later fences greater than h's floor, if h holds. If it does not, its
// renewal tells.
func (l *leases) raiseTo(ctx context.Context, h driver.Hold, floor int64) error {
	for miss := range sqlrow.MaxLocked {
		if err := sqlrow.Pause(ctx, miss); err != nil {
			return err
		}
		raised, err := l.numbered(ctx, l.raise, []any{h.Name, h.Name, h.Owner, floor})
		if err != nil || raised > 0 {
			return err
		}
		row, err := l.look(ctx, h.Name)
		if err != nil {
			return err
		}
		if !row.held() || row.owner != h.Owner {
			return driver.ErrLost
		}
	}
	return sqlrow.ErrLocked
}
