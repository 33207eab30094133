package mysqllock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/unsent"
)

// unique is the strategy UniqueIndex: who inserts the row of a name holds it, and deletes it
// to unlock. An expired row is taken over by a statement that names the end of its lease.
// Fences come from a second table, whose rows are never deleted.
type unique struct {
	*leases
	fences string // the second table, quoted

	add, over    *sql.Stmt // insert, and take over
	count, begin *sql.Stmt // take a number, and the first one of a name
	dead, bury   *sql.Stmt // of the sweeper

	stop   context.CancelFunc // of the sweeper
	sweeps sync.WaitGroup
}

func uniqueDDL(o Options) []string {
	return []string{fmt.Sprintf(`-- Locks of distlock, strategy unique: a row is a lock that is held, until expires has passed.
-- Times are µs since 1970.
CREATE TABLE IF NOT EXISTS %s (
  name    VARBINARY(%d) NOT NULL PRIMARY KEY,
  owner   VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  expires BIGINT NULL,                -- NULL: never
  since   BIGINT NOT NULL DEFAULT 0,
  meta    BLOB NULL                   -- who holds, as JSON
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

// fencesOf is the second table's name.
func fencesOf(table string) string { return table + "_fences" }

func newUnique(ctx context.Context, s *site) (strategy, error) {
	l, err := newLeases(ctx, s, shape{table: s.opts.Table, key: "name", columns: leaseColumns()},
		shape{table: fencesOf(s.opts.Table), key: "name", columns: []column{
			{name: "name", types: bytesType, length: nameLength}, {name: "number", types: bigType}, {name: "floor", types: bigType}}})
	if err != nil {
		return nil, err
	}
	l.twice = true
	u := &unique{leases: l, fences: quoted(fencesOf(s.opts.Table)), stop: func() {}}
	if err := u.prepare(ctx); err != nil {
		return nil, errors.Join(err, u.Close())
	}
	u.startSweeper()
	return u, nil
}

// prepare makes the statements.
func (u *unique) prepare(ctx context.Context) error {
	names, values, _ := u.fill([2]string{"owner", "?"}, [2]string{"expires", clockSQL + " + ?"},
		[2]string{"since", clockSQL}, [2]string{"meta", "?"})
	_, _, sets := u.fill([2]string{"owner", "?"}, [2]string{"expires", "GREATEST(LAST_INSERT_ID(" + clockSQL + " + ?), COALESCE(expires, 0))"}, [2]string{"since", "?"}, [2]string{"meta", "?"})
	mine := " WHERE name = ? AND owner = ? AND " + live
	// The lock's row is read for sharing: else it could become another's before the counter is changed.
	ifMine := " WHERE name = ? AND EXISTS (SELECT 1 FROM " + u.table + mine + " LOCK IN SHARE MODE)"
	for _, s := range []struct {
		into **sql.Stmt
		text string
	}{
		{&u.read, u.readSQL("0", "f.number", "COALESCE(NULLIF(t.owner, ''), '?')", " LEFT JOIN "+u.fences+" f ON f.name = ?")},
		{&u.list, u.listSQL("")},
		{&u.add, "INSERT INTO " + u.table + " (name, " + strings.Join(names, ", ") + ") VALUES (?, " + strings.Join(values, ", ") + ")"},
		{&u.over, "UPDATE " + u.table + " SET " + strings.Join(sets, ", ") + " WHERE name = ? AND (owner = ? OR expires <= " + clockSQL + ")"},
		{&u.count, "UPDATE " + u.fences + " SET number = LAST_INSERT_ID(GREATEST(number + 1, floor + 1, " + clockSQL + "))" + ifMine},
		{&u.begin, "INSERT IGNORE INTO " + u.fences + " (name, number) SELECT ?, LAST_INSERT_ID(" + clockSQL + ") FROM " + u.table + mine + " LOCK IN SHARE MODE"},
		{&u.free, "DELETE FROM " + u.table + mine},
		{&u.raise, u.server.updateJoin() + " (SELECT f.name AS id FROM " + u.table + " t FORCE INDEX (" + u.index + ") STRAIGHT_JOIN " + u.fences + " f ON f.name = ?" +
			" WHERE t.name = ? AND t.owner = ? AND " + live + " LIMIT 1 FOR UPDATE " + u.server.skipLocked() + ") s" +
			" STRAIGHT_JOIN " + u.fences + " ON name = s.id SET floor = LAST_INSERT_ID(GREATEST(floor, ?))"},
		{&u.dead, "SELECT name, owner, expires FROM " + u.table + " WHERE expires <= " + clockSQL + " - ? LIMIT ?"},
		{&u.bury, "DELETE FROM " + u.table + " WHERE name = ? AND owner = ? AND expires = ? AND expires <= " + clockSQL},
	} {
		if err := u.stmt(ctx, s.into, s.text); err != nil {
			return err
		}
	}
	return u.prepareRenewals(ctx)
}

// Acquire inserts the row, or takes it over if its lease has ended.
func (u *unique) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	meta, err := encodeMeta(r.Meta)
	if err == nil {
		err = u.checkRequest(r)
	}
	if err != nil {
		return driver.Grant{}, u.wrap("acquire", r.Name, err)
	}
	g, err := u.acquire(ctx, r, meta)
	return g, u.wrap("acquire", r.Name, err)
}

// acquire tries a few times: a row that is gone when it is looked at can be inserted. It does
// so also if the lease ended, on a slow server, before its number was there.
func (u *unique) acquire(ctx context.Context, r driver.Request, meta []byte) (driver.Grant, error) {
	var late error
	for range maxMisses {
		taken, err := u.take(ctx, r, meta)
		if err != nil && late == nil {
			err = unsent.Mark(err)
		}
		if err != nil {
			return driver.Grant{}, err
		}
		if !taken {
			continue
		}
		number, err := u.number(ctx, r)
		if err != nil {
			return driver.Grant{}, err
		}
		if number > 0 {
			return granted(r, number)
		}
		late = errors.New("the lease ended before its fence was there")
	}
	if late != nil {
		return driver.Grant{}, late
	}
	return driver.Grant{}, &driver.HeldError{Retry: minTTL}
}

// take makes r's owner hold, without a number yet.
func (u *unique) take(ctx context.Context, r driver.Request, meta []byte) (bool, error) {
	_, err := u.run(ctx, u.add, u.args(arg{"", r.Name}, arg{"", r.Owner}, arg{"", micros(r.TTL)}, arg{"meta", meta})...)
	if duplicate(err) {
		return u.takeOver(ctx, r, meta)
	}
	return err == nil, err
}

// takeOver takes a row that is there, if it is r's own or its lease has ended. It does so
// by one statement with that condition: a row that was renewed meanwhile is let alone.
func (u *unique) takeOver(ctx context.Context, r driver.Request, meta []byte) (bool, error) {
	row, err := u.look(ctx, r.Name)
	switch {
	case err != nil || !row.there:
		return false, err
	case row.held() && row.owner != r.Owner:
		return false, row.refusal()
	}
	since := row.now
	if row.held() {
		since = row.since
	}
	taken, err := u.numbered(ctx, u.over, u.args(arg{"", r.Owner}, arg{"", micros(r.TTL)}, arg{"since", since}, arg{"meta", meta},
		arg{"", r.Name}, arg{"", r.Owner}))
	return taken > 0, err
}

// number takes the number of r's grant, on condition that r's owner holds: a number that
// was taken too late would be greater than that of the next holder. 0: it does not hold.
func (u *unique) number(ctx context.Context, r driver.Request) (int64, error) {
	args := u.twofold(r.Name, r.Owner)
	for _, stmt := range []*sql.Stmt{u.count, u.begin, u.count} {
		number, err := u.numbered(ctx, stmt, args)
		if err != nil || number > 0 {
			return number, err
		}
	}
	return 0, nil
}
