package sqlitelock

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/claims"
)

// lock is what the file knows of one name. Its times are those of the file's clock.
type lock struct {
	claims.Lock
	fresh bool // there is no row yet
	dead  int  // claims that ended by the clock and are not buried
	swept int64
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
	l.fresh, l.Number = l.Number == 0, max(l.Number, l.swept)
	l.Sort()
	return l, nil
}

var errAnotherBoot = fmt.Errorf("%w: a process on another host or boot has taken the lock file over; it must be used on one host only", driver.ErrInvalid)

func (l *lock) scan(rows *sql.Rows, now int64) error {
	var owner, meta sql.NullString
	var mode, ticket, fence, since, until sql.NullInt64
	err := rows.Scan(&l.swept, &l.Kind, &l.Limit, &l.Number, &owner, &mode, &ticket, &fence, &since, &until, &meta)
	if err != nil || !owner.Valid {
		return err
	}
	if until.Int64 <= now {
		l.dead++
		return nil
	}
	l.Claims = append(l.Claims, claims.Claim{
		Owner: owner.String, Mode: driver.Mode(mode.Int64), Ticket: ticket.Int64, Fence: fence.Int64,
		Since: since.Int64, Until: until.Int64, Meta: meta.String,
	})
	return nil
}
