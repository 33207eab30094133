package mysqllock

import (
	"context"
	"fmt"
	"strconv"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/unsent"
)

// versions is the strategy Version. Every change of a row raises its version, and a row is taken
// only if its version is still the one that was read. The version of a grant is its number. Rows
// are never deleted.
type versions struct {
	*leases
	insert, swap string // templates
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
  meta    BLOB NULL                   -- about the owner, as JSON
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;
`, quoted(o.Table), nameLength)}
}

func newVersion(ctx context.Context, s *site) (strategy, error) {
	l, err := newLeases(ctx, s, shape{table: s.opts.Table, key: "name", columns: leaseColumns(
		column{name: "version", types: bigType}, column{name: "number", types: bigType, optional: true})})
	if err != nil {
		return nil, err
	}
	v := &versions{leases: l}
	l.take = v.take
	l.read = l.readTemplate("t.version", l.column("number", "0"), "t.owner", "")
	l.free = "UPDATE " + l.table + " SET version = version + 1, " + l.assign("owner", "''", "expires", "0", "meta", "''") + " WHERE " + own
	l.listed = "owner <> '' AND "
	l.bump = "version = GREATEST(version + 1, {floor}), "
	v.insert = "INSERT INTO " + l.table + " SET " +
		l.assign("name", "{name}", "version", "0", "number", "0", "owner", "''", "expires", "0", "since", "0", "meta", "''")
	// The server that writes decides by its own clock whether the row is free. Columns are read
	// before they are set, see sqlTake.
	next := "GREATEST(version + 1, " + clockSQL + ")"
	v.swap = "UPDATE " + l.table + " SET " +
		l.assign("number", next, "version", "LAST_INSERT_ID("+next+")",
			"expires", "GREATEST("+clockSQL+" + {ttl}, IF(owner = {owner}, COALESCE(expires, 0), 0))",
			"owner", "{owner}", "since", "{since}", "meta", "{meta}") +
		" WHERE name = {name} AND version = {version} AND (COALESCE(owner, '') IN ('', {owner}) OR expires <= " + clockSQL + ")"
	return v, nil
}

// take changes a row that is free and has not changed since it was read. The first attempt for a
// name inserts a free row.
func (v *versions) take(ctx context.Context, r driver.Request, meta []byte) (number int64, err error) {
	row, since, err := v.lookFor(ctx, r)
	if err != nil {
		return 0, err
	}
	if !row.exists {
		if _, _, err := v.changeText(ctx, fill(v.insert, r.Hold)); err != nil && !duplicate(err) {
			return 0, unsent.Mark(err)
		}
	}
	_, number, err = v.changeText(ctx, fill(v.swap, r.Hold,
		"{since}", since, "{meta}", literal(string(meta)), "{version}", strconv.FormatInt(row.version, 10)))
	return number, err
}
