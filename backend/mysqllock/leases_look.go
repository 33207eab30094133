package mysqllock

import (
	"context"
	"database/sql"
	"encoding/json"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/claims"
)

// lease is the row of a name, as of now.
type lease struct {
	now     int64 // the server's clock
	there   bool  // there is a row
	version int64 // of the row; UniqueIndex has none
	number  int64 // of the grant
	owner   string
	since   int64
	expires sql.NullInt64
	meta    []byte
}

// held says that the lease lasts.
func (l lease) held() bool {
	return l.there && l.owner != "" && (!l.expires.Valid || l.expires.Int64 > l.now)
}

// left is how long it lasts; negative: without end.
func (l lease) left() time.Duration {
	if !l.expires.Valid {
		return -1
	}
	return time.Duration(l.expires.Int64-l.now) * time.Microsecond
}

func (l lease) info() driver.Holder {
	h := driver.Holder{
		Owner: l.owner, Mode: driver.Exclusive, Fence: uint64(max(l.number, 0)) << claims.SpanBits, Left: l.left(), Held: -1,
	}
	if l.since > 0 {
		h.Held = time.Duration(max(l.now-l.since, 0)) * time.Microsecond
	}
	// Meta that somebody else wrote is not worth failing for.
	_ = json.Unmarshal(l.meta, &h.Meta)
	return h
}

// refusal words who is in the way.
func (l lease) refusal() error {
	return &driver.HeldError{Retry: max(l.left(), 0), Holders: []driver.Holder{l.info()}}
}

// look reads a name's row, without waiting for anybody who writes.
func (l *leases) look(ctx context.Context, name string) (lease, error) {
	var row lease
	var version, number, since sql.NullInt64
	var owner sql.NullString
	err := l.read.QueryRowContext(ctx, l.twofold(name)...).Scan(&row.now, &row.there, &version, &number, &owner, &since, &row.expires, &row.meta)
	row.version, row.number, row.owner, row.since = version.Int64, number.Int64, owner.String, since.Int64
	return row, err
}

// twofold are a name and what else a statement has as parameters, with the name once more
// if there are two tables.
func (l *leases) twofold(name string, args ...any) []any {
	if l.twice {
		args = append([]any{name}, args...)
	}
	return append([]any{name}, args...)
}

// readSQL is what look asks. version, number and owner are expressions over the table's
// row, t.
func (l *leases) readSQL(version, number, owner, join string) string {
	return "SELECT " + clockSQL + ", t.name IS NOT NULL, " + version + ", " + number + ", " + owner + ", " +
		l.orElse("since", "0") + ", t.expires, " + l.orElse("meta", "''") +
		" FROM (SELECT 1) one LEFT JOIN " + l.table + " t ON t.name = ?" + join
}

// orElse is a column of t, or what stands for it in a table that lacks it.
func (l *leases) orElse(column, instead string) string {
	if l.has(column) {
		return "t." + column
	}
	return instead
}

// Inspect describes a lock.
func (l *leases) Inspect(ctx context.Context, name string) (driver.Info, error) {
	i := driver.Info{Name: name, WaiterCount: -1}
	if err := l.check(driver.Hold{Name: name, Mode: driver.Exclusive}); err != nil {
		return i, l.wrap("inspect", name, err)
	}
	row, err := l.look(ctx, name)
	if err == nil && row.held() {
		i.Mode, i.Holders = driver.Exclusive, []driver.Holder{row.info()}
	}
	return i, l.wrap("inspect", name, err)
}

// listSQL is what List asks.
func (l *leases) listSQL(which string) string {
	return "SELECT name FROM " + l.table + " WHERE name >= ? AND name > ? AND " + which + live + " ORDER BY name LIMIT ?"
}

// List yields the names that are held, in the order of their bytes. yield may call the
// backend.
func (l *leases) List(ctx context.Context, prefix string, yield func(name string) bool) error {
	if l.shut.Load() {
		return l.wrap("list", prefix, driver.ErrClosed)
	}
	err := claims.Pages(prefix, func(after string) ([]string, error) { return l.page(ctx, prefix, after) }, yield)
	return l.wrap("list", prefix, err)
}

func (l *leases) page(ctx context.Context, prefix, after string) ([]string, error) {
	rows, err := l.list.QueryContext(ctx, prefix, after, claims.ListPage)
	if err != nil {
		return nil, err
	}
	return claims.ScanNames(rows)
}
