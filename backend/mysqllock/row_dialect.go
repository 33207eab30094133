package mysqllock

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/sqlrow"
)

// rowDialect is the table of strategy Row. Its statements are prepared once on each
// connection, so that each is one round trip in every pool.
type rowDialect struct {
	site     *site
	notifier *notifier

	take, free, swap, insert, mark, names *sql.Stmt
	await                                 *sql.Stmt // extend for one hold, which waits
	extend, look                          [len(rowSizes)]*sql.Stmt
	all                                   []*sql.Stmt
}

// rowSizes are the numbers of rows that statements are made for. What lies between
// repeats its last row.
var rowSizes = [...]int{1, 16, sqlrow.MaxExtend}

func (d *rowDialect) prepare(ctx context.Context, table string) error {
	for _, s := range []struct {
		into **sql.Stmt
		text string
	}{
		{&d.take, sqlTake}, {&d.free, sqlFree}, {&d.swap, sqlSwap},
		{&d.insert, sqlInsert}, {&d.mark, sqlMark}, {&d.names, sqlNames},
		{&d.await, strings.Replace(sqlExtend, "{skip}", "", 1)},
	} {
		if err := d.stmt(ctx, s.into, rowSQL(s.text, table, d.site.server, 1)); err != nil {
			return err
		}
	}
	for i, n := range rowSizes {
		err := d.stmt(ctx, &d.extend[i], rowSQL(sqlExtend, table, d.site.server, n))
		if err == nil {
			err = d.stmt(ctx, &d.look[i], rowSQL(sqlLook, table, d.site.server, n))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (d *rowDialect) stmt(ctx context.Context, into **sql.Stmt, text string) (err error) {
	if *into, err = d.site.db.PrepareContext(ctx, text); err == nil {
		d.all = append(d.all, *into)
	}
	return err
}

func (d *rowDialect) close() error {
	var errs []error
	for _, s := range d.all {
		errs = append(errs, s.Close())
	}
	return errors.Join(errs...)
}

// run runs a statement that commits by itself; id is what it tells beside the number of
// rows.
func (d *rowDialect) run(ctx context.Context, stmt *sql.Stmt, args ...any) (n, id int64, err error) {
	return d.site.change(ctx, stmt, args)
}

// Take is one UPDATE.
func (d *rowDialect) Take(ctx context.Context, t sqlrow.TakeRequest) (number int64, err error) {
	k := sqlrow.KeyOf(t.Name)
	_, number, err = d.run(ctx, d.take, uint8(t.Kind), []byte(t.Owner), t.TTL.Microseconds(), t.Meta, orNull(t.Address),
		k[:], int64(sqlrow.MaxNumber), []byte(t.Owner), uint8(t.Kind))
	return number, err
}

// Free is one UPDATE.
func (d *rowDialect) Free(ctx context.Context, h sqlrow.HoldKey) (freed, waited bool, err error) {
	n, waiting, err := d.run(ctx, d.free, h.Key[:], []byte(h.Owner))
	return n > 0, waiting > 0, err
}

// Extend is one UPDATE for all.
func (d *rowDialect) Extend(ctx context.Context, holds []sqlrow.HoldKey, e sqlrow.Extension) (n int, until int64, err error) {
	size, padded := padded(holds)
	var args []any
	for _, h := range padded {
		args = append(args, h.Key[:])
	}
	for _, h := range padded {
		args = append(args, h.Key[:], []byte(h.Owner))
	}
	args = append(args, e.TTL.Microseconds(), !e.Shorten, e.Floor, orNull(d.notifier.Address(sqlrow.Key{})))
	var renewed int64
	if e.Wait {
		renewed, until, err = changed(d.await.ExecContext(ctx, args...))
	} else {
		renewed, until, err = d.run(ctx, d.extend[size], args...)
	}
	return int(renewed), until, err
}

// padded fills a list up to the next size.
func padded[T any](list []T) (size int, all []T) {
	size = slices.IndexFunc(rowSizes[:], func(n int) bool { return n >= len(list) })
	all = slices.Clone(list)
	for len(all) < rowSizes[size] {
		all = append(all, list[len(list)-1])
	}
	return size, all
}

// Look is one SELECT, which waits for nobody.
func (d *rowDialect) Look(ctx context.Context, keys []sqlrow.Key) (now int64, found []sqlrow.Row, err error) {
	size, padded := padded(keys)
	var args []any
	for _, k := range padded {
		args = append(args, k[:])
	}
	rows, err := d.look[size].QueryContext(ctx, args...)
	if err != nil {
		return 0, nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var r sqlrow.Row
		there, err := scanRow(rows, &now, &r)
		if err != nil {
			return 0, nil, err
		}
		if there {
			found = append(found, r)
		}
	}
	return now, found, rows.Err()
}

// scanRow reads the clock, and the row beside it if there is one.
func scanRow(rows *sql.Rows, now *int64, r *sqlrow.Row) (there bool, err error) {
	var k, name, owner, address []byte
	var rev, waiting, kind, lim, number, granted, since, until, claimed sql.NullInt64
	err = rows.Scan(now, &k, &name, &rev, &waiting,
		&kind, &lim, &number, &owner, &granted, &since, &until, &r.Meta, &address, &r.Claims, &claimed)
	if err != nil || k == nil {
		return false, err
	}
	copy(r.Key[:], k)
	r.Name, r.Owner, r.Address = string(name), string(owner), string(address)
	r.Rev, r.Waiting, r.Number, r.Granted = rev.Int64, waiting.Int64, number.Int64, granted.Int64
	r.Since, r.Until, r.Claimed, r.Limit = since.Int64, until.Int64, claimed.Int64, int(lim.Int64)
	if kind.Int64 == int64(uint8(kind.Int64)) {
		r.Kind = driver.Mode(kind.Int64)
	}
	return true, nil
}

// Insert is one INSERT IGNORE.
func (d *rowDialect) Insert(ctx context.Context, r sqlrow.Row) (done bool, err error) {
	n, _, err := d.run(ctx, d.insert, slices.Concat([]any{r.Key[:], []byte(r.Name)}, stateOf(r), []any{r.Earliest, r.Latest})...)
	return n > 0, err
}

// Swap is one UPDATE.
func (d *rowDialect) Swap(ctx context.Context, r sqlrow.Row, _ bool) (done, waited bool, err error) {
	n, waiting, err := d.run(ctx, d.swap, append([]any{r.Key[:], r.Rev, r.Earliest, r.Latest}, stateOf(r)...)...)
	return n > 0, waiting > 0, err
}

// stateOf are the values of rowState.
func stateOf(r sqlrow.Row) []any {
	return []any{
		uint8(r.Kind), r.Limit, r.Number, orNull(r.Owner), r.Granted, r.Since, r.Until,
		r.Meta, orNull(r.Address), r.Claims, r.Claimed,
	}
}

func orNull(text string) []byte {
	if text == "" {
		return nil
	}
	return []byte(text)
}

// Mark is one UPDATE.
func (d *rowDialect) Mark(ctx context.Context, k sqlrow.Key, life time.Duration) error {
	_, _, err := d.run(ctx, d.mark, life.Microseconds(), k[:])
	return err
}

// Names is one SELECT, in the order of keys.
func (d *rowDialect) Names(ctx context.Context, prefix, after string, limit int) (names []string, err error) {
	var k sqlrow.Key
	if after != "" {
		k = sqlrow.KeyOf(after)
	}
	rows, err := d.names.QueryContext(ctx, k[:], len(prefix), []byte(prefix), limit)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var name []byte
		if err := rows.Scan(&name); err != nil {
			return nil, err
		}
		names = append(names, string(name))
	}
	return names, rows.Err()
}
