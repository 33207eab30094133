package mysqllock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/unsent"
)

// versions is the strategy Version. Every change of a row raises its version, and a row
// is taken only if its version is still the one that was read. The version of a grant is
// its number. Rows are never deleted.
type versions struct {
	*leases
	add, swap *sql.Stmt
}

func versionDDL(o Options) []string {
	return []string{fmt.Sprintf(`-- Locks of distlock, strategy version: one row for each name that was ever locked, free when
-- owner is empty or expires has passed. Times are µs since 1970.
CREATE TABLE IF NOT EXISTS %s (
  name    VARBINARY(%d) NOT NULL PRIMARY KEY,
  version BIGINT NOT NULL,            -- raised by every change
  number  BIGINT NOT NULL DEFAULT 0,  -- the version of the last grant; its fence is 1024 times that
  owner   VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT '',
  expires BIGINT NULL,
  since   BIGINT NOT NULL DEFAULT 0,
  meta    BLOB NULL                   -- who holds, as JSON
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;
`, quoted(o.Table), nameLength)}
}

func newVersion(ctx context.Context, s *site) (strategy, error) {
	l, err := newLeases(ctx, s, shape{table: s.opts.Table, key: "name", columns: append(leaseColumns(),
		column{name: "version", types: bigType}, column{name: "number", types: bigType, optional: true})})
	if err != nil {
		return nil, err
	}
	l.bump, l.revision = "version = GREATEST(version + 1, ?), ", "version"
	v := &versions{leases: l}
	if err := v.prepare(ctx); err != nil {
		return nil, errors.Join(err, v.Close())
	}
	return v, nil
}

// prepare makes the statements.
func (v *versions) prepare(ctx context.Context) error {
	// The server that writes decides, by its own clock, whether the row is free. Columns are
	// read before they are set, see sqlTake.
	next := "GREATEST(version + 1, " + clockSQL + ")"
	_, _, sets := v.fill([2]string{"number", next}, [2]string{"version", "LAST_INSERT_ID(" + next + ")"},
		[2]string{"expires", "GREATEST(" + clockSQL + " + ?, IF(owner = ?, COALESCE(expires, 0), 0))"},
		[2]string{"owner", "?"}, [2]string{"since", "?"}, [2]string{"meta", "?"})
	names, values, _ := v.fill([2]string{"number", clockSQL}, [2]string{"version", "LAST_INSERT_ID(" + clockSQL + ")"},
		[2]string{"expires", clockSQL + " + ?"}, [2]string{"owner", "?"}, [2]string{"since", "?"}, [2]string{"meta", "?"})
	free := "(COALESCE(owner, '') IN ('', ?) OR expires <= " + clockSQL + ")"
	_, _, emptied := v.fill([2]string{"owner", "''"}, [2]string{"expires", "0"}, [2]string{"meta", "''"})
	mine := " WHERE name = ? AND owner = ? AND " + live
	for _, s := range []struct {
		into **sql.Stmt
		text string
	}{
		{&v.read, v.readSQL("t.version", v.orElse("number", "0"), "t.owner", "")},
		{&v.list, v.listSQL("owner <> '' AND ")},
		{&v.add, "INSERT INTO " + v.table + " (name, " + strings.Join(names, ", ") + ") VALUES (?, " + strings.Join(values, ", ") + ")"},
		{&v.swap, "UPDATE " + v.table + " SET " + strings.Join(sets, ", ") + " WHERE name = ? AND version = ? AND " + free},
		{&v.free, "UPDATE " + v.table + " SET version = version + 1, " + strings.Join(emptied, ", ") + mine},
	} {
		if err := v.stmt(ctx, s.into, s.text); err != nil {
			return err
		}
	}
	return v.prepareRenewals(ctx)
}

// Acquire reads, and takes what is free if nobody was faster.
func (v *versions) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	meta, err := encodeMeta(r.Meta)
	if err == nil {
		err = v.checkRequest(r)
	}
	if err != nil {
		return driver.Grant{}, v.wrap("acquire", r.Name, err)
	}
	g, err := v.acquire(ctx, r, meta)
	return g, v.wrap("acquire", r.Name, err)
}

func (v *versions) acquire(ctx context.Context, r driver.Request, meta []byte) (driver.Grant, error) {
	for range maxMisses {
		row, err := v.look(ctx, r.Name)
		switch {
		case err != nil:
			return driver.Grant{}, unsent.Mark(err)
		case row.held() && row.owner != r.Owner:
			return driver.Grant{}, row.refusal()
		}
		number, err := v.take(ctx, r, row, meta)
		switch {
		case err != nil:
			return driver.Grant{}, err
		case number > 0:
			return granted(r, number)
		}
	}
	return driver.Grant{}, &driver.HeldError{Retry: minTTL}
}

// maxMisses is how often an attempt reads again what somebody else has changed since.
// Each time somebody else held, or does.
const maxMisses = 3

// take makes r's owner hold, unless the row has changed since it was read, or is not free
// by the clock of the server that writes. 0: it does not hold.
func (v *versions) take(ctx context.Context, r driver.Request, row lease, meta []byte) (number int64, err error) {
	since := row.now
	if row.held() {
		since = row.since
	}
	owner, tail := arg{"", r.Owner}, []arg{{"", r.Owner}, {"since", since}, {"meta", meta}}
	if !row.there {
		number, err = v.numbered(ctx, v.add, v.args(append([]arg{{"", r.Name}, {"", micros(r.TTL)}}, tail...)...))
		switch {
		case duplicate(err):
			return 0, nil
		case err == nil && v.columns.counts():
			return v.added(ctx, r)
		}
		return number, err
	}
	set := append([]arg{{"", micros(r.TTL)}, owner}, tail...)
	return v.numbered(ctx, v.swap, v.args(append(set, arg{"", r.Name}, arg{"", row.version}, owner)...))
}

// added is the number of a row that r's owner has just made, in a table whose insert id is that of
// another column. 0: the hold has ended since.
func (v *versions) added(ctx context.Context, r driver.Request) (number int64, err error) {
	row, err := v.look(ctx, r.Name)
	if err != nil || !row.held() || row.owner != r.Owner {
		return 0, err
	}
	return row.version, nil
}
