package mysqllock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/claims"
	"github.com/distlock/distlock/internal/sqlrow"
)

// leaseDialect is the part that UniqueIndex and Version share: a table in which a row names the
// owner of a lock and the end of its lease.
//
// Statements are texts without parameters, so that each is one round trip in every pool. In
// templates {name}, {owner}, {ttl} and the like stand for values, see fill.
type leaseDialect struct {
	*database
	naming  nameRules
	table   string // quoted
	index   string // that makes names unique, quoted
	columns tableInfo

	read   string // template of the SELECT of Read
	free   string // template of a statement that ends a hold
	listed string // a condition of the rows that Names reads
	bump   string // template of another assignment of a renewal
}

const (
	// maxMeta is the size of a BLOB.
	maxMeta = 1<<16 - 1

	// ownerLength is the length of a UUID.
	ownerLength = 36

	// live is the condition that a lease lasts. A lease without an end, which another program may
	// have written, lasts.
	live = "(expires > " + clockSQL + " OR expires IS NULL)"

	// own is the condition that the owner's lease lasts.
	own = "name = {name} AND owner = {owner} AND " + live
)

// newLeases checks the tables, the first of which has the leases.
func newLeases(ctx context.Context, s *database) (*leaseDialect, error) {
	columns, err := s.prepare(ctx)
	if err != nil {
		return nil, err
	}
	if err := s.checkClocks(ctx, s.opts.Table, "name"); err != nil {
		return nil, err
	}
	spec := s.tables[0]
	n, err := newNameRules(columns["name"])
	if err != nil {
		return nil, s.mismatch(spec, err)
	}
	d := &leaseDialect{database: s, naming: n, table: quoted(s.opts.Table), columns: columns}
	d.index, err = s.indexOf(ctx, spec)
	return d, err
}

// leaseBackend returns the strategy of a dialect.
func leaseBackend(s *database, d sqlrow.Dialect) strategy {
	return sqlrow.New(d, sqlrow.Options{Package: "mysqllock", Name: s.name, Mutex: true})
}

// leaseColumns returns the columns of every such table.
func leaseColumns(more ...columnSpec) []columnSpec {
	return append([]columnSpec{
		{name: "name", ddl: nameDDL, types: textTypes},
		{name: "owner", ddl: "VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT ''", types: textTypes, length: ownerLength},
		{name: "expires", ddl: "BIGINT NULL", note: "NULL: never"},
		{name: "since", ddl: "BIGINT NOT NULL DEFAULT 0", optional: true},
		{name: "meta", ddl: "BLOB NULL", note: "about the owner, as JSON", types: longTypes, optional: true},
	}, more...)
}

// assign returns assignments of pairs of columns and values, without columns that the table lacks.
func (d *leaseDialect) assign(pairs ...string) string {
	var all []string
	for pair := range slices.Chunk(pairs, 2) {
		if _, ok := d.columns[pair[0]]; ok {
			all = append(all, pair[0]+" = "+pair[1])
		}
	}
	return strings.Join(all, ", ")
}

// column returns a column of the row t, or a value for a table that lacks it.
func (d *leaseDialect) column(name, instead string) string {
	if _, ok := d.columns[name]; ok {
		return "t." + name
	}
	return instead
}

// readTemplate returns the template for Read. The parameters are expressions over the row t.
func (d *leaseDialect) readTemplate(version, number, granted, owner, join string) string {
	return "SELECT " + clockSQL + ", t.name, " + version + ", " + number + ", " + granted + ", " + owner + ", " +
		d.column("since", "0") + ", t.expires, " + d.column("meta", "''") +
		" FROM " + writable + " o LEFT JOIN " + d.table + " t ON t.name IN ({names})" + join
}

// fill writes values into a template: pairs of placeholders and values.
func fill(template, name, owner string, pairs ...string) string {
	return strings.NewReplacer(append(pairs, "{name}", literal(name), "{owner}", literal(owner))...).Replace(template)
}

func decimal(n int64) string { return strconv.FormatInt(n, 10) }

// run runs a statement that commits by itself.
func (d *leaseDialect) run(ctx context.Context, template, name, owner string, pairs ...string) (n, id int64, err error) {
	if err := d.naming.check(name); err != nil {
		return 0, 0, err
	}
	return d.runText(ctx, fill(template, name, owner, pairs...))
}

func (d *leaseDialect) runText(ctx context.Context, text string) (n, id int64, err error) {
	return d.change(ctx, len(text), func() (sql.Result, error) { return d.db.ExecContext(ctx, text) })
}

// checkMeta refuses values that the column can't hold.
func checkMeta(meta []byte) error {
	if len(meta) > maxMeta {
		return fmt.Errorf("%w: the meta data has %d bytes, at most %d are possible", driver.ErrInvalid, len(meta), maxMeta)
	}
	return nil
}

// Free is one statement.
func (d *leaseDialect) Free(ctx context.Context, h sqlrow.HoldKey) (freed, waited bool, err error) {
	n, _, err := d.run(ctx, d.free, h.Name, h.Owner)
	return n > 0, false, err
}

// Extend is one UPDATE for all. No other rows are locked on the way, as in sqlExtend.
func (d *leaseDialect) Extend(ctx context.Context, holds []sqlrow.HoldKey, e sqlrow.Extension) (n int, until int64, err error) {
	which := make([]string, len(holds))
	for i, h := range holds {
		which[i] = fill("name = {name} AND owner = {owner}", h.Name, h.Owner)
	}
	skip := d.server.skipLocked()
	if e.Wait {
		skip = ""
	}
	text := d.server.updateJoin() + " (SELECT name AS id FROM " + d.table + " FORCE INDEX (" + d.index + ") WHERE (" +
		strings.Join(which, " OR ") + ") AND " + live + " LIMIT " + strconv.Itoa(len(holds)) + " FOR UPDATE " + skip + ") s" +
		" STRAIGHT_JOIN " + d.table + " FORCE INDEX (" + d.index + ") ON name = s.id SET " +
		strings.ReplaceAll(d.bump, "{floor}", decimal(e.Floor)) + "expires = " + longerSQL("expires", decimal(e.TTL.Microseconds()))
	var renewed int64
	if e.Wait {
		renewed, until, err = changed(d.db.ExecContext(ctx, text))
	} else {
		renewed, until, err = d.runText(ctx, text)
	}
	return int(renewed), until, err
}

// Read is one SELECT, which waits for no writer.
func (d *leaseDialect) Read(ctx context.Context, names []string) (now int64, found []sqlrow.Row, err error) {
	list := make([]string, len(names))
	for i, name := range names {
		if err := d.naming.check(name); err != nil {
			return 0, nil, err
		}
		list[i] = literal(name)
	}
	rows, err := d.db.QueryContext(ctx, strings.Replace(d.read, "{names}", strings.Join(list, ", "), 1))
	if err != nil {
		return 0, nil, err
	}
	defer rows.Close()
	for rows.Next() {
		r := sqlrow.Row{Kind: driver.Exclusive}
		var name, owner sql.NullString
		var version, number, granted, since, until sql.NullInt64
		if err := rows.Scan(&now, &name, &version, &number, &granted, &owner, &since, &until, &r.Meta); err != nil {
			return 0, nil, err
		}
		if !name.Valid {
			continue
		}
		if !until.Valid {
			until.Int64 = sqlrow.Forever
		}
		r.Key, r.Name, r.Rev, r.Number = sqlrow.KeyOf(name.String), name.String, version.Int64+1, number.Int64
		r.Owner, r.Granted, r.Since, r.Until = owner.String, max(granted.Int64, 1), since.Int64, until.Int64
		found = append(found, r)
	}
	return now, found, answered(rows, now)
}

// Mark does nothing: there are no waiters.
func (d *leaseDialect) Mark(context.Context, sqlrow.Key, time.Duration) error { return nil }

// Names is one SELECT, in the order of names.
func (d *leaseDialect) Names(ctx context.Context, prefix, after string, limit int) ([]string, error) {
	rows, err := d.db.QueryContext(ctx, fmt.Sprintf("SELECT name FROM %s WHERE name >= %s AND name > %s AND %s ORDER BY name LIMIT %d",
		d.table, literal(prefix), literal(after), d.listed+live, limit))
	if err != nil {
		return nil, err
	}
	return claims.ScanNames(rows)
}

// uniqueDialect has the statements of UniqueIndex: the owner that inserts the row of a name holds
// the lock, and deletes the row to unlock. An expired row is taken over by one conditional
// statement. Fences come from a second table, whose rows are never deleted.
type uniqueDialect struct {
	*leaseDialect
	insert, takeOver, raise string // templates
	count, startNumber      string // templates of the next number, and of a name's first one
}

func uniqueTables(o Options) []tableSpec {
	return []tableSpec{{
		table: o.Table, about: "strategy unique: a row is a lock that is held, until expires has passed.", columns: leaseColumns(), deletes: true,
	}, {
		table: fencesOf(o.Table), about: `strategy unique: the numbers of grants, one row for each name that was ever locked.
-- Deleting rows is safe only if the clock never goes back: numbers then go on from it.`, columns: []columnSpec{
			{name: "name", ddl: nameDDL},
			{name: "number", ddl: "BIGINT NOT NULL", note: "of the last grant; its fence is 1024 times that"},
			{name: "floor", ddl: "BIGINT NOT NULL DEFAULT 0", note: "later numbers are greater than this, too"},
		},
	}}
}

// fencesOf returns the name of the second table.
func fencesOf(table string) string { return table + "_fences" }

func newUnique(ctx context.Context, s *database) (strategy, error) {
	d, err := newUniqueDialect(ctx, s)
	if err != nil {
		return nil, err
	}
	return leaseBackend(s, d), nil
}

func newUniqueDialect(ctx context.Context, s *database) (*uniqueDialect, error) {
	d, err := newLeases(ctx, s)
	if err != nil {
		return nil, err
	}
	fences := quoted(fencesOf(s.opts.Table))
	d.read = d.readTemplate("0", "GREATEST(f.number, f.floor)", "f.number", "COALESCE(NULLIF(t.owner, ''), '?')",
		" LEFT JOIN "+fences+" f ON f.name = t.name")
	d.free = "DELETE FROM " + d.table + " WHERE " + own
	// The lock's row is read for sharing, so that no other owner takes it before the number is written.
	held := d.table + " WHERE " + own + " LOCK IN SHARE MODE"
	return &uniqueDialect{
		leaseDialect: d,
		insert: "INSERT INTO " + d.table + " SET " +
			d.assign("name", "{name}", "owner", "{owner}", "expires", clockSQL+" + {ttl}", "since", clockSQL, "meta", "{meta}"),
		// Columns are read before they are set, see sqlTake.
		takeOver: "UPDATE " + d.table + " SET " +
			d.assign("since", "IF(owner = {owner} AND "+live+", since, "+clockSQL+")",
				"expires", "GREATEST(LAST_INSERT_ID("+clockSQL+" + {ttl}), COALESCE(expires, 0))", "owner", "{owner}", "meta", "{meta}") +
			" WHERE name = {name} AND (owner = {owner} OR expires <= " + clockSQL + ")",
		raise: s.server.updateJoin() + " (SELECT f.name AS id FROM " + d.table + " t FORCE INDEX (" + d.index + ") STRAIGHT_JOIN " +
			fences + " f ON f.name = {name} WHERE t.name = {name} AND t.owner = {owner} AND " + live +
			" LIMIT 1 FOR UPDATE " + s.server.skipLocked() + ") s" +
			" STRAIGHT_JOIN " + fences + " ON name = s.id SET floor = LAST_INSERT_ID(GREATEST(floor, {floor}))",
		count: "UPDATE " + fences + " SET number = LAST_INSERT_ID(GREATEST(number + 1, floor + 1, " + clockSQL +
			")) WHERE name = {name} AND EXISTS (SELECT 1 FROM " + held + ")",
		startNumber: "INSERT IGNORE INTO " + fences + " (name, number) SELECT {name}, LAST_INSERT_ID(" + clockSQL + ") FROM " + held,
	}, nil
}

// Take makes t.Owner hold, and then takes a number.
func (d *uniqueDialect) Take(ctx context.Context, t sqlrow.TakeRequest) (number int64, err error) {
	if err := checkMeta(t.Meta); err != nil {
		return 0, err
	}
	taken, err := d.claim(ctx, t)
	if err != nil || !taken {
		return 0, err
	}
	number, err = d.number(ctx, t.Name, t.Owner)
	if err != nil {
		return 0, fmt.Errorf("the lease has no fence: %v", err) // not by %w: a part of the request was sent
	}
	if number == 0 {
		return 0, errors.New("the lease ended before its fence was there")
	}
	return number, nil
}

// claim inserts a row, or takes over the one that exists.
func (d *uniqueDialect) claim(ctx context.Context, t sqlrow.TakeRequest) (taken bool, err error) {
	_, _, err = d.run(ctx, d.insert, t.Name, t.Owner, valuesOf(t)...)
	if duplicate(err) {
		return d.takeRow(ctx, t)
	}
	return err == nil, err
}

// takeRow takes a row over that is t.Owner's or has expired.
func (d *uniqueDialect) takeRow(ctx context.Context, t sqlrow.TakeRequest) (taken bool, err error) {
	_, until, err := d.run(ctx, d.takeOver, t.Name, t.Owner, valuesOf(t)...)
	return until > 0, err
}

func valuesOf(t sqlrow.TakeRequest) []string {
	return []string{"{ttl}", decimal(t.TTL.Microseconds()), "{meta}", literal(string(t.Meta))}
}

// number takes the number of a grant if the owner holds the lock, else 0: a number that is taken
// too late would be greater than the next holder's.
func (d *uniqueDialect) number(ctx context.Context, name, owner string) (number int64, err error) {
	for _, template := range []string{d.count, d.startNumber, d.count} {
		if _, number, err = d.run(ctx, template, name, owner); err != nil || number > 0 {
			break
		}
	}
	return number, err
}

// Extend raises later fences above a floor before it renews. Holds whose numbers are locked are left out.
func (d *uniqueDialect) Extend(ctx context.Context, holds []sqlrow.HoldKey, e sqlrow.Extension) (n int, until int64, err error) {
	if e.Floor > 0 {
		var raised []sqlrow.HoldKey
		for _, h := range holds {
			_, floor, err := d.run(ctx, d.raise, h.Name, h.Owner, "{floor}", decimal(e.Floor))
			if err != nil {
				return 0, 0, err
			}
			if floor > 0 {
				raised = append(raised, h)
			}
		}
		holds = raised
	}
	if len(holds) == 0 {
		return 0, 0, nil
	}
	return d.leaseDialect.Extend(ctx, holds, e)
}

// Insert leaves it to Take.
func (d *uniqueDialect) Insert(context.Context, sqlrow.Row) (bool, error) {
	return false, sqlrow.ErrBusy
}

// Swap leaves it to Take.
func (d *uniqueDialect) Swap(context.Context, sqlrow.Row, bool) (done, waited bool, err error) {
	return false, false, sqlrow.ErrBusy
}

// versionDialect has the statements of Version. Every change of a row raises its version, and a row
// is taken only if its version is still the one that was read. The version of a grant is its
// number. Rows are never deleted.
type versionDialect struct {
	*leaseDialect
	swap string // template
}

func versionTable(o Options) tableSpec {
	return tableSpec{table: o.Table, about: `strategy version: one row for each name that was ever locked, free when
-- owner is empty or expires has passed.`, columns: leaseColumns(
		columnSpec{name: "version", ddl: "BIGINT NOT NULL", note: "raised by every change"},
		columnSpec{name: "number", ddl: "BIGINT NOT NULL DEFAULT 0", note: "the version of the last grant; its fence is 1024 times that", optional: true},
	)}
}

func newVersion(ctx context.Context, s *database) (strategy, error) {
	d, err := newLeases(ctx, s)
	if err != nil {
		return nil, err
	}
	d.read = d.readTemplate("t.version", "t.version", d.column("number", "t.version"), "t.owner", "")
	d.free = "UPDATE " + d.table + " SET version = version + 1, " + d.assign("owner", "''", "expires", "0", "meta", "''") + " WHERE " + own
	d.listed = "owner <> '' AND "
	d.bump = "version = GREATEST(version + 1, {floor}), "
	// The server that writes decides by its own clock whether the row is free.
	return leaseBackend(s, &versionDialect{d, "UPDATE " + d.table + " SET " +
		d.assign("version", "GREATEST(version + 1, {number})", "number", "{granted}", "owner", "{owner}",
			"expires", "{until}", "since", "{since}", "meta", "{meta}") +
		" WHERE name = {name} AND version = {version} AND (COALESCE(owner, '') IN ('', {owner}) OR expires <= " + clockSQL + ")" +
		" AND " + clockSQL + " BETWEEN {earliest} AND {latest}"}), nil
}

// Take leaves it to Swap, which needs the version.
func (d *versionDialect) Take(context.Context, sqlrow.TakeRequest) (int64, error) { return 0, nil }

// Insert inserts a free row, for Swap.
func (d *versionDialect) Insert(ctx context.Context, r sqlrow.Row) (done bool, err error) {
	_, _, err = d.run(ctx, "INSERT INTO "+d.table+" SET "+
		d.assign("name", "{name}", "version", "0", "number", "0", "owner", "''", "expires", "0", "since", "0", "meta", "''"), r.Name, "")
	if err != nil && !duplicate(err) {
		return false, err
	}
	r.Rev = 1
	done, _, err = d.Swap(ctx, r, false)
	return done, err
}

// Swap is one UPDATE.
func (d *versionDialect) Swap(ctx context.Context, r sqlrow.Row, _ bool) (done, waited bool, err error) {
	if err := checkMeta(r.Meta); err != nil {
		return false, false, err
	}
	n, _, err := d.run(ctx, d.swap, r.Name, r.Owner, "{version}", decimal(r.Rev-1), "{number}", decimal(r.Number),
		"{granted}", decimal(r.Granted), "{since}", decimal(r.Since), "{until}", decimal(r.Until),
		"{meta}", literal(string(r.Meta)), "{earliest}", decimal(r.Earliest), "{latest}", decimal(r.Latest))
	return n > 0, false, err
}
