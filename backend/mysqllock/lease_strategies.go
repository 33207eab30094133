package mysqllock

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/unsent"
)

// unique is the strategy UniqueIndex: the owner that inserts the row of a name holds the lock, and
// deletes the row to unlock. An expired row is taken over by one conditional statement. Fences come
// from a second table, whose rows are never deleted.
type unique struct {
	*leases
	insert, takeOver   string // templates
	count, startNumber string // templates of the next number, and of a name's first one
}

func uniqueDDL(o Options) []string {
	return []string{fmt.Sprintf(`-- Locks of distlock, strategy unique: a row is a lock that is held, until expires has passed.
-- Times are µs since 1970.
CREATE TABLE IF NOT EXISTS %s (
  name    VARBINARY(%d) NOT NULL PRIMARY KEY,
  owner   VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  expires BIGINT NULL,                -- NULL: never
  since   BIGINT NOT NULL DEFAULT 0,
  meta    BLOB NULL                   -- about the owner, as JSON
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;
`, quoted(o.Table), nameLength), fmt.Sprintf(`-- The numbers of grants, one row for each name that was ever locked. Deleting rows is safe
-- only if the clock never goes back: numbers then go on from it.
CREATE TABLE IF NOT EXISTS %s (
  name   VARBINARY(%d) NOT NULL PRIMARY KEY,
  number BIGINT NOT NULL,             -- of the last grant; its fence is 1024 times that
  floor  BIGINT NOT NULL DEFAULT 0    -- later numbers are greater than this, too
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;
`, quoted(fencesOf(o.Table)), nameLength)}
}

// fencesOf returns the name of the second table.
func fencesOf(table string) string { return table + "_fences" }

func newUnique(ctx context.Context, s *database) (strategy, error) {
	fences := fencesOf(s.opts.Table)
	l, err := newLeases(ctx, s, uniqueDDL(s.opts), tableSpec{table: s.opts.Table, key: "name", columns: leaseColumns()},
		tableSpec{table: fences, key: "name", columns: []columnSpec{
			{name: "name", types: bytesType, length: nameLength}, {name: "number", types: bigType}, {name: "floor", types: bigType}}})
	if err != nil {
		return nil, err
	}
	fences = quoted(fences)
	u := &unique{leases: l}
	l.take = u.take
	l.read = l.readTemplate("0", "f.number", "COALESCE(NULLIF(t.owner, ''), '?')", " LEFT JOIN "+fences+" f ON f.name = {name}")
	l.free = "DELETE FROM " + l.table + " WHERE " + own
	l.raise = s.server.updateJoin() + " (SELECT f.name AS id FROM " + l.table + " t FORCE INDEX (" + l.index + ") STRAIGHT_JOIN " + fences + " f ON f.name = {name}" +
		" WHERE t.name = {name} AND t.owner = {owner} AND " + live + " LIMIT 1 FOR UPDATE " + s.server.skipLocked() + ") s" +
		" STRAIGHT_JOIN " + fences + " ON name = s.id SET floor = LAST_INSERT_ID(GREATEST(floor, {floor}))"
	u.insert = "INSERT INTO " + l.table + " SET " +
		l.assign("name", "{name}", "owner", "{owner}", "expires", clockSQL+" + {ttl}", "since", clockSQL, "meta", "{meta}")
	u.takeOver = "UPDATE " + l.table + " SET " +
		l.assign("owner", "{owner}", "expires", "GREATEST(LAST_INSERT_ID("+clockSQL+" + {ttl}), COALESCE(expires, 0))", "since", "{since}", "meta", "{meta}") +
		" WHERE name = {name} AND (owner = {owner} OR expires <= " + clockSQL + ")"
	// The lock's row is read for sharing, so that no other owner takes it before the number is written.
	held := l.table + " WHERE " + own + " LOCK IN SHARE MODE"
	u.count = "UPDATE " + fences + " SET number = LAST_INSERT_ID(GREATEST(number + 1, floor + 1, " + clockSQL + ")) WHERE name = {name} AND EXISTS (SELECT 1 FROM " + held + ")"
	u.startNumber = "INSERT IGNORE INTO " + fences + " (name, number) SELECT {name}, LAST_INSERT_ID(" + clockSQL + ") FROM " + held
	return u, nil
}

// take makes r's owner hold, and then takes a number.
func (u *unique) take(ctx context.Context, r driver.Request, meta []byte) (number int64, err error) {
	_, _, err = u.changeText(ctx, fill(u.insert, r.Hold, "{meta}", literal(string(meta))))
	if duplicate(err) {
		var taken bool
		if taken, err = u.takeRow(ctx, r, meta); err == nil && !taken {
			return 0, nil
		}
	}
	if err != nil {
		return 0, unsent.Mark(err)
	}
	number, err = u.number(ctx, r.Hold)
	if err == nil && number == 0 {
		err = errors.New("the lease ended before its fence was there")
	}
	return number, err
}

// takeRow takes a row that exists, if it is r's own or its lease has ended. The statement checks
// this again: a row that was renewed meanwhile is left alone.
func (u *unique) takeRow(ctx context.Context, r driver.Request, meta []byte) (bool, error) {
	row, since, err := u.lookFor(ctx, r)
	if err != nil || !row.exists {
		return false, err
	}
	_, taken, err := u.changeText(ctx, fill(u.takeOver, r.Hold, "{since}", since, "{meta}", literal(string(meta))))
	return taken > 0, err
}

// number takes the number of h's grant if h's owner holds the lock, else 0: a number that is taken
// too late would be greater than that of the next holder.
func (u *unique) number(ctx context.Context, h driver.Hold) (number int64, err error) {
	for _, template := range []string{u.count, u.startNumber, u.count} {
		if _, number, err = u.changeText(ctx, fill(template, h)); err != nil || number > 0 {
			break
		}
	}
	return number, err
}

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

func newVersion(ctx context.Context, s *database) (strategy, error) {
	l, err := newLeases(ctx, s, versionDDL(s.opts), tableSpec{table: s.opts.Table, key: "name", columns: leaseColumns(
		columnSpec{name: "version", types: bigType}, columnSpec{name: "number", types: bigType, optional: true})})
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
