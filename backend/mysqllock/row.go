package mysqllock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/claims"
	"github.com/distlock/distlock/internal/sqlrow"
)

const addressLength = 64

// rowTable is the table of strategy Row.
func rowTable(o Options) tableSpec {
	return tableSpec{table: o.Table, gate: true, about: `strategy row: one row for each name that was ever locked.
-- Deleting rows of locks that are free is safe only if the clock never goes back.`, columns: []columnSpec{
		{name: "k", ddl: fmt.Sprintf("BINARY(%d) NOT NULL", len(sqlrow.Key{})), note: "SHA-256 of the name"},
		{name: "name", ddl: "BLOB NOT NULL"},
		{name: "kind", ddl: "TINYINT NOT NULL", note: "1: mutex, 2: read/write lock, 4: semaphore"},
		{name: "lim", ddl: "BIGINT NOT NULL", note: "permits of the semaphore"},
		{name: "number", ddl: "BIGINT NOT NULL", note: "of the last grant; its fence is 1024 times that"},
		{name: "owner", ddl: fmt.Sprintf("VARBINARY(%d) NULL", sqlrow.MaxOwner), note: "of the exclusive hold, if until has not passed"},
		{name: "granted", ddl: "BIGINT NOT NULL", note: "number of the owner's grant"},
		{name: "since", ddl: "BIGINT NOT NULL"},
		{name: "until", ddl: "BIGINT NOT NULL"},
		{name: "meta", ddl: "MEDIUMBLOB NULL", note: "about the owner, as JSON"},
		{name: "address", ddl: fmt.Sprintf("VARBINARY(%d) NULL", addressLength), note: "the user-level lock that the owner releases to notify waiters"},
		{name: "claims", ddl: "MEDIUMBLOB NULL", note: "readers, permits and places in the queue, as JSON"},
		{name: "claimed", ddl: "BIGINT NOT NULL", note: "when the last of them ends"},
		{name: "rev", ddl: "BIGINT NOT NULL", note: "raised by each change"},
		{name: "waiting", ddl: "BIGINT NOT NULL", note: "until when waiters want to be notified"},
	}}
}

// rowStrategy is the strategy Row.
type rowStrategy struct {
	*sqlrow.Backend
	dialect *rowDialect
}

func newRow(ctx context.Context, s *database) (strategy, error) {
	if err := s.prepare(ctx); err != nil {
		return nil, err
	}
	if err := s.checkClocks(ctx, s.opts.Table, "k"); err != nil {
		return nil, err
	}
	d := &rowDialect{site: s, notifier: newNotifier(s.db)}
	if err := d.prepare(ctx); err != nil {
		return nil, errors.Join(err, d.close())
	}
	o := sqlrow.Options{Package: "mysqllock", Name: s.name, Notifier: func(*sqlrow.Backend) sqlrow.Notifier { return d.notifier }}
	d.notifier.text = s.rowSQL(sqlFreeNotifying, 1)
	return &rowStrategy{sqlrow.New(d, o), d}, nil
}

// Close also closes the prepared statements.
func (r *rowStrategy) Close() error { return errors.Join(r.Backend.Close(), r.dialect.close()) }

// rowDialect has the statements of strategy Row. They are prepared once on each connection, so that
// each is one round trip in every pool.
type rowDialect struct {
	site     *database
	notifier *notifier

	take, contend, share, free, drop, rewrite, swap, insert, mark, names *sql.Stmt
	await                                                                *sql.Stmt // extend for one hold, which waits
	extend, read                                                         [len(rowSizes)]*sql.Stmt
	all                                                                  []*sql.Stmt
}

// rowSizes are the numbers of rows that statements are prepared for. A call with fewer rows repeats
// its last one.
var rowSizes = [...]int{1, 16, sqlrow.MaxExtend}

func (d *rowDialect) prepare(ctx context.Context) error {
	for _, s := range []struct {
		into **sql.Stmt
		text string
	}{
		{&d.take, sqlTake}, {&d.contend, sqlContend}, {&d.share, sqlShare}, {&d.free, sqlFree}, {&d.drop, sqlDrop}, {&d.rewrite, sqlRewrite}, {&d.swap, sqlSwap},
		{&d.insert, sqlInsert}, {&d.mark, sqlMark}, {&d.names, sqlNames},
		{&d.await, strings.Replace(sqlExtend, "{skip}", "", 1)},
	} {
		if err := d.stmt(ctx, s.into, d.site.rowSQL(s.text, 1)); err != nil {
			return err
		}
	}
	for i, n := range rowSizes {
		err := d.stmt(ctx, &d.extend[i], d.site.rowSQL(sqlExtend, n))
		if err == nil {
			err = d.stmt(ctx, &d.read[i], d.site.rowSQL(sqlRead, n))
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

// keyOf returns the key of a name as a parameter.
func keyOf(name string) []byte {
	k := sqlrow.KeyOf(name)
	return k[:]
}

// run runs a statement that commits by itself. It returns the number of rows and the insert id.
func (d *rowDialect) run(ctx context.Context, stmt *sql.Stmt, args ...any) (n, id int64, err error) {
	size := 0
	for _, a := range args {
		size += 16 // more than a parameter takes beside its bytes
		if b, ok := a.([]byte); ok {
			size += len(b)
		}
	}
	return d.site.change(ctx, size, func() (sql.Result, error) { return stmt.ExecContext(ctx, args...) })
}

// Take is one UPDATE.
func (d *rowDialect) Take(ctx context.Context, t sqlrow.TakeRequest) (number int64, err error) {
	_, number, err = d.run(ctx, d.take, uint8(t.Mode), []byte(t.Owner), t.TTL.Microseconds(), t.Meta, orNull(t.Address),
		keyOf(t.Name), int64(sqlrow.MaxNumber), []byte(t.Owner), uint8(t.Mode))
	return number, err
}

// Contend is one UPDATE.
func (d *rowDialect) Contend(ctx context.Context, t sqlrow.TakeRequest) (sqlrow.Taken, error) {
	own := sqlrow.Own(t.Owner)
	stmt, text := d.contend, sqlContend
	if !t.Mode.Alone() {
		stmt, text = d.share, sqlShare
	}
	n, number, err := d.run(ctx, stmt, named(text, map[string]any{
		"k": keyOf(t.Name), "owner": []byte(t.Owner), "kind": uint8(claims.KindOf(t.Mode)), "mode": uint8(t.Mode),
		"lim": t.Limit, "ttl": t.TTL.Microseconds(), "life": t.PlaceLife.Microseconds(), "meta": t.Meta, "address": orNull(t.Address),
		"queue": t.Queue, "own": []byte(own), "start": fmt.Appendf(nil, "%s%d", own, t.Mode), "place": fmt.Appendf(nil, `%s%d,"ticket"`, own, t.Mode),
		"tail": []byte(t.Tail()), "size": len(own) + len(t.Tail()) + 100, "max": int64(sqlrow.MaxNumber),
	})...)
	return sqlrow.Taken{Number: number, Placed: n > 0 && number == 0}, err
}

// Free is one UPDATE. It notifies too if the notifier's session is idle.
func (d *rowDialect) Free(ctx context.Context, h sqlrow.HoldKey, _ bool) (freed, waited bool, err error) {
	n, waiting, err := d.notifier.change(ctx, keyOf(h.Name), []byte(h.Owner))
	if errors.Is(err, errNotIdle) || undone(err) {
		n, waiting, err = d.run(ctx, d.free, keyOf(h.Name), []byte(h.Owner))
	}
	return n > 0, waiting > 0, unchanged(err)
}

// Drop is one UPDATE.
func (d *rowDialect) Drop(ctx context.Context, h sqlrow.HoldKey) (dropped, waited bool, err error) {
	n, waiting, err := d.run(ctx, d.drop, named(sqlDrop, map[string]any{"k": keyOf(h.Name), "own": []byte(sqlrow.Own(h.Owner))})...)
	return n > 0, waiting > 0, err
}

// Rewrite is one UPDATE, which waits for the row once.
func (d *rowDialect) Rewrite(ctx context.Context, w sqlrow.Rewriting) (done bool, err error) {
	n, _, err := changed(d.rewrite.ExecContext(ctx, w.Old, w.New, w.Until, w.Number, w.Key[:], w.Earliest, w.Latest, w.Old))
	return n > 0, err
}

// Extend is one UPDATE for all.
func (d *rowDialect) Extend(ctx context.Context, holds []sqlrow.HoldKey, e sqlrow.Extension) (n int, until int64, err error) {
	size, padded := padded(holds)
	var args []any
	for _, h := range padded {
		args = append(args, keyOf(h.Name))
	}
	for _, h := range padded {
		args = append(args, keyOf(h.Name), []byte(h.Owner))
	}
	args = append(args, e.TTL.Microseconds(), e.Floor, orNull(d.notifier.Address(e.TTL)))
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

// Read is one SELECT, which waits for no writer.
func (d *rowDialect) Read(ctx context.Context, names []string) (now int64, found []sqlrow.Row, err error) {
	size, padded := padded(names)
	var args []any
	for _, name := range padded {
		args = append(args, keyOf(name))
	}
	rows, err := d.read[size].QueryContext(ctx, args...)
	if err != nil {
		return 0, nil, unchanged(err)
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
	return now, found, answered(rows, now)
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

// stateOf returns the values of rowState.
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
	return claims.ScanNames(rows)
}

// rowState are the columns that Insert and Swap write, and rowColumns those that Read reads, in the
// order of parameters and results.
var (
	rowState   = []string{"kind", "lim", "number", "owner", "granted", "since", "until", "meta", "address", "claims", "claimed"}
	rowColumns = append([]string{"k", "name", "rev", "waiting"}, rowState...)
)

// Assignments take effect one after the other, or at once where sql_mode has
// SIMULTANEOUS_ASSIGNMENT. So a column is read before it is set, and what an expression reads of a column that was set
// leads to the same either way.

// sqlTake returns the number through the insert id, which takes no other round trip.
const sqlTake = `UPDATE {table} FORCE INDEX (PRIMARY) SET
granted = LAST_INSERT_ID(GREATEST(number + 1, {now})), number = GREATEST(number + 1, {now}),
since = IF(until > {now}, since, {now}), kind = ?, lim = 0, owner = ?, until = GREATEST(until, {now} + ?), meta = ?, address = ?,
claims = NULL, claimed = 0, rev = rev + 1
WHERE k = ? AND claimed <= {now} AND number < ? AND (until <= {now} OR owner = ? AND kind = ?)`

// sqlContend takes the lock for an exclusive hold, or a place. It returns the number through the insert id. Claims are set
// after all that is decided by them, so that no other statement has to read the row first: a join with a table of what was read
// took the server five times as long. Once the owner has the lock it is mine, which leaves claims alone as well.
const sqlContend = `UPDATE {table} FORCE INDEX ({gate}) SET
granted = IF({first} OR {mine} OR {free}, GREATEST(number + 1, {now}), granted),
since = IF({mine} OR NOT ({first} OR {free}), since, {now}),
meta = IF({first} OR {mine} OR {free}, :meta, meta), address = IF({first} OR {mine} OR {free}, :address, address), kind = :kind,
number = IF(LAST_INSERT_ID(IF({first} OR {mine} OR {free}, GREATEST(number + 1, {now}), 0)) > 0, GREATEST(number + 1, {now}), number),
owner = IF({first} OR {mine} OR {free}, :owner, owner), until = IF({first} OR {mine} OR {free}, GREATEST(until, {now} + :ttl), until),
claimed = IF({first}, IF(LOCATE(CHAR(10), claims) = 0, 0, claimed), IF({mine} OR {free}, claimed, GREATEST(claimed, {now} + :life))),
claims = IF({first}, IF(LOCATE(CHAR(10), claims) = 0, NULL, CONCAT('[', SUBSTR(claims, LOCATE(CHAR(10), claims) + 1))), IF({mine} OR {free}, claims,
	CONCAT({end of claims}, :start, ',"ticket":', rev + 1, ',"since":', {now}, ',"until":', {now} + :life, :tail, ']'))),
rev = rev + 1
WHERE k = :k AND GREATEST(number + 1, {now}) <= :max AND {readable} AND {p} = COALESCE(INSTR(claims, :place), 0)
	AND IF({mine}, kind = :kind AND {p} = 0, {free} OR kind = :kind AND IF({p} = 0, :queue, {first} AND until <= {now}))`

// sqlShare is sqlContend for readers and permits. What makes a place a hold also stays true until claims are set; then the hold
// itself says so.
const sqlShare = `UPDATE {table} FORCE INDEX ({gate}) SET
waiting = waiting + 0 * LAST_INSERT_ID(IF({may}, GREATEST(number + 1, {now}), 0)),
owner = IF({may}, NULL, owner), granted = IF({may}, 0, granted), since = IF({may}, 0, since), until = IF({may}, 0, until),
meta = IF({may}, NULL, meta), address = IF({may}, NULL, address), kind = :kind, lim = IF(:mode = 4, :lim, lim),
claimed = GREATEST(claimed, {now} + IF({may}, :ttl, :life)),
claims = CONCAT(IF({p} > 0, LEFT(claims, {p} - 1), {end of claims}),
	:start, IF({may}, ',"number":', ',"ticket":'), IF({may}, GREATEST(number + 1, {now}), rev + 1),
	',"since":', {now}, ',"until":', {now} + IF({may}, :ttl, :life), :tail,
	IF({p} > 0 AND LOCATE(CHAR(10), claims, {p}) > 0, SUBSTR(claims, LOCATE(CHAR(10), claims, {p}) - 1), ']')),
number = IF({may} OR INSTR(claims, CONCAT(:start, ',"number":')) > 0, GREATEST(number + 1, {now}), number), rev = rev + 1
WHERE k = :k AND GREATEST(number + 1, {now}) <= :max AND {readable} AND {p} = COALESCE(INSTR(claims, :place), 0)
	AND (claims IS NULL OR IF(:mode = 3, INSTR(claims, '"mode":4,'), INSTR(claims, '"mode":2,') + INSTR(claims, '"mode":3,')) + INSTR(claims, '"mode":1,') = 0)
	AND ({free} OR kind = :kind AND (:mode <> 4 OR lim = :lim)) AND NOT {mine} AND ({may} OR :queue AND {p} = 0)`

// sqlDrop removes a claim that has not ended. It also returns its result through the insert id.
const sqlDrop = `UPDATE {table} FORCE INDEX ({gate}) SET
waiting = LAST_INSERT_ID(IF(waiting > {now}, waiting, 0)), rev = rev + 1,
claimed = IF(INSTR(claims, :own) = 2 AND LOCATE(CHAR(10), claims) = 0, 0, claimed),
claims = IF(LOCATE(CHAR(10), claims, INSTR(claims, :own)) > 0,
	CONCAT(LEFT(claims, INSTR(claims, :own) - 1), SUBSTR(claims, LOCATE(CHAR(10), claims, INSTR(claims, :own)) + 1)),
	IF(INSTR(claims, :own) = 2, NULL, CONCAT(LEFT(claims, INSTR(claims, :own) - 3), ']')))
WHERE k = :k AND claimed > {now} AND INSTR(claims, :own) > 0 AND {lined}
	AND CAST(SUBSTRING_INDEX(SUBSTRING_INDEX(SUBSTR(claims, LOCATE('"until":', claims, INSTR(claims, :own)) + 8, 20), '}', 1), ',', 1) AS UNSIGNED) > {now}`

const sqlRewrite = `UPDATE {table} FORCE INDEX ({gate}) SET
claims = REPLACE(claims, ?, ?), claimed = GREATEST(claimed, ?), number = GREATEST(number, ?), rev = rev + 1
WHERE k = ? AND claimed > {now} AND {now} BETWEEN ? AND ? AND INSTR(claims, ?) > 0`

// lined is true if each claim has a line, as this version writes them. Other rows are left to who reads them as JSON.
const lined = `(LEFT(claims, 11) = '[{"owner":"' AND RIGHT(claims, 2) = '}]' AND INSTR(claims, '},{"owner":') = 0)`

// lineFeeds is the number of line feeds in a text.
func lineFeeds(text string) string {
	return "(LENGTH(" + text + ") - LENGTH(REPLACE(" + text + ", CHAR(10), '')))"
}

var parameter = regexp.MustCompile(`:[a-z]+`)

// named returns the arguments of a statement in the order of its parameters.
func named(text string, values map[string]any) (args []any) {
	for _, name := range parameter.FindAllString(expanded(text), -1) {
		args = append(args, values[name[1:]])
	}
	return args
}

// abbreviations are parts of statements: whether all claims are gone (free), whether the owner holds alone (mine), where its claim
// begins (p), whether that is the first one, whether it may share the lock, and whether SQL can change the text: it has ended
// claims only among others that live.
var abbreviations = []*strings.Replacer{
	strings.NewReplacer(
		"{readable}", "(claims IS NULL OR claimed > {now} AND "+lined+" AND LENGTH(claims) + :size < "+strconv.Itoa(sqlrow.MaxText)+")",
		"{may}", "(until <= {now} AND IF(:mode = 3, {writer} = 0 OR {p} > 0 AND {writer} > {p}, claims IS NULL OR {ahead} < :lim))",
		"{free}", "(until <= {now} AND claims IS NULL)", "{mine}", "(until > {now} AND owner <=> :owner)", "{first}", "({p} = 2)",
		"{end of claims}", "IF(claims IS NULL, '[', CONCAT(LEFT(claims, LENGTH(claims) - 1), ',', CHAR(10)))", "{lined}", lined,
	),
	strings.NewReplacer("{ahead}", "IF({p} > 0, "+lineFeeds("LEFT(claims, {p})")+", 1 + "+lineFeeds("claims")+")",
		"{writer}", `COALESCE(INSTR(claims, '"mode":2,'), 0)`),
	strings.NewReplacer("{p}", "COALESCE(INSTR(claims, :own), 0)"),
}

// expanded replaces the abbreviations, some of which have parameters.
func expanded(text string) string {
	for _, r := range abbreviations {
		text = r.Replace(text)
	}
	return text
}

// sqlFree returns through the insert id whether the row has waiters.
const sqlFree = `UPDATE {table} FORCE INDEX (PRIMARY) SET
waiting = LAST_INSERT_ID(IF(waiting > {now}, waiting, 0)),
owner = NULL, granted = 0, since = 0, until = 0, meta = NULL, address = NULL, rev = rev + 1
WHERE k = ? AND owner = ? AND until > {now}`

// sqlFreeNotifying is sqlFree in the notifier's session. Once the row is locked, and before it is committed, it takes the
// lock with the next number and releases the old one: a notified waiter waits for the row, and no longer. It returns
// 2 if it has notified, and 1 if that failed.
const sqlFreeNotifying = `UPDATE {table} FORCE INDEX (PRIMARY) SET
waiting = waiting + 0 * LAST_INSERT_ID(IF(waiting > {now}, IF(GET_LOCK(?, 0) + RELEASE_LOCK(?) = 2, 2, 1), 0)),
owner = NULL, granted = 0, since = 0, until = 0, meta = NULL, address = NULL, rev = rev + 1
WHERE k = ? AND owner = ? AND until > {now}`

// sqlSwap returns its result in the same way.
const sqlSwap = `{update} (SELECT k AS id FROM {table} FORCE INDEX (PRIMARY)
WHERE k = ? AND rev = ? AND {now} BETWEEN ? AND ? LIMIT 1 FOR UPDATE {skip}) s STRAIGHT_JOIN {table} FORCE INDEX (PRIMARY) ON k = s.id SET
waiting = LAST_INSERT_ID(IF(waiting > {now}, waiting, 0)), {state = ?}, rev = rev + 1`

// sqlExtend renews many holds, and returns the end that the TTL alone leads to through the insert id. The keys lead to the
// rows, each of which must have its own owner. A locked row is left out, and no other row is locked
// on the way: LIMIT makes a table of the keys, which comes first.
const sqlExtend = `{update} (SELECT k AS id FROM {table} FORCE INDEX (PRIMARY)
WHERE k IN ({keys}) AND (k, owner) IN ({holds}) AND until > {now} LIMIT {count} FOR UPDATE {skip}) s
STRAIGHT_JOIN {table} FORCE INDEX (PRIMARY) ON k = s.id SET
until = GREATEST(LAST_INSERT_ID({now} + ?), until), number = GREATEST(number, ?),
address = ?, rev = rev + 1`

// sqlRead also selects the clock, which is needed even if no row is found.
const sqlRead = `SELECT {now}, {columns} FROM ` + writable + ` o LEFT JOIN {table} l ON l.k IN ({keys})`

const sqlInsert = `INSERT IGNORE INTO {table} ({columns}) SELECT ?, ?, 1, 0, {?} FROM (SELECT 1) one WHERE {now} BETWEEN ? AND ?`

const sqlMark = `UPDATE {table} FORCE INDEX ({gate}) SET waiting = GREATEST(waiting, {now} + ?) WHERE k = ?`

// sqlNames is ordered by the key: names are longer than what the server sorts by.
const sqlNames = `SELECT name FROM {table}
WHERE k > ? AND (until > {now} OR claimed > {now}) AND LEFT(name, ?) = ? ORDER BY k LIMIT ?`

// rowSQL completes a statement for a number of holds.
func (d *database) rowSQL(text string, holds int) string {
	text = parameter.ReplaceAllString(expanded(text), "?")
	return strings.NewReplacer(
		"{table}", d.quoted(d.opts.Table), "{gate}", gate, "{now}", clockSQL, "{update}", d.server.updateJoin(), "{skip}", d.server.skipLocked(),
		"{columns}", strings.Join(rowColumns, ", "),
		"{state = ?}", strings.Join(rowState, " = ?, ")+" = ?",
		"{?}", listOf("?", len(rowState)), "{count}", strconv.Itoa(holds),
		"{keys}", listOf("?", holds), "{holds}", listOf("(?, ?)", holds),
	).Replace(text)
}

func listOf(what string, n int) string { return strings.Repeat(what+", ", n-1) + what }
