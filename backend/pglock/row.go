package pglock

import (
	"context"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/distlock/distlock/internal/claims"
	"github.com/distlock/distlock/internal/sqlrow"
	"github.com/distlock/distlock/internal/wait"
)

// newRow makes strategy Row.
func newRow(ctx context.Context, db *database) (*sqlrow.Backend, error) {
	t, err := db.ensureTable(ctx, rowTable(db.opts.Table))
	if err != nil {
		return nil, err
	}
	opts := sqlrow.Options{Package: "pglock", Name: db.name}
	if db.pgx && !db.pooled() && db.limit != 1 { // one connection must be left for calls
		opts.Pushed = true
		opts.Notifier = func(b *sqlrow.Backend) sqlrow.Notifier { return newReleaseListener(db, t.channel(), b) }
	}
	return sqlrow.New(&rowDialect{db, newRowStatements(t.quoted, t.channel())}, opts), nil
}

// rowDialect implements sqlrow's dialect for PostgreSQL.
type rowDialect struct {
	*database
	sql *rowStatements
}

func (d *rowDialect) Take(ctx context.Context, t sqlrow.TakeRequest) (number int64, err error) {
	found, err := d.scanOne(ctx, d.sql.take, []any{&number}, keyOf(t.Name), t.Owner, int64(t.Mode), t.TTL.Microseconds(),
		string(t.Meta), int64(sqlrow.MaxNumber))
	if err != nil || !found { // the number may be that of a try that was rolled back
		return 0, err
	}
	return number, nil
}

func (d *rowDialect) Contend(ctx context.Context, t sqlrow.TakeRequest) (sqlrow.Taken, error) {
	var k taken
	own := sqlrow.Own(t.Owner)
	args := []any{keyOf(t.Name), t.Owner, int64(t.Mode), t.TTL.Microseconds(), t.Queue, t.PlaceLife.Microseconds(), own, t.Tail()}
	text := d.sql.contend
	if t.Mode.Alone() {
		args = append(args, string(t.Meta))
	} else {
		text = d.sql.share
		args = append(args, int64(claims.KindOf(t.Mode)), int64(t.Limit))
	}
	found, err := d.scanOne(ctx, text, k.columns(), args...)
	switch {
	case err != nil || !found:
		return sqlrow.Taken{}, err
	case k.granted:
		return sqlrow.Taken{Number: k.row.Number}, nil
	}
	return sqlrow.Taken{Placed: true, Now: k.now, Row: k.read()}, nil
}

// taken receives what Contend and Read return.
type taken struct {
	granted      bool
	now          int64
	key          sql.NullString
	meta, claims []byte
	row          sqlrow.Row
}

func (k *taken) columns() []any { return append([]any{&k.granted}, k.rowColumns()...) }

// rowColumns receives the clock and the columns of rowColumns.
func (k *taken) rowColumns() []any {
	r := &k.row
	return []any{&k.now, &k.key, &r.Name, &r.Kind, &r.Limit, &r.Number, &r.Owner, &r.Granted, &r.Since, &r.Until, &k.meta, &k.claims, &r.Claimed, &r.Rev, &r.Waiting}
}

// read returns the row. Its Key is zero if there is none.
func (k *taken) read() sqlrow.Row {
	k.row.Key, _ = parseKey(k.key.String)
	k.row.Meta, k.row.Claims = nilIfEmpty(k.meta), nilIfEmpty(k.claims)
	return k.row
}

// Free is one UPDATE, and two if there are waiters that were not expected.
func (d *rowDialect) Free(ctx context.Context, h sqlrow.HoldKey, contended bool) (freed, waited bool, err error) {
	if !contended {
		n, err := d.exec(ctx, d.sql.freeQuietly, keyOf(h.Name), h.Owner)
		if n > 0 || err != nil {
			return n > 0, false, err
		}
	}
	err = notifying(true, func(notify bool) error {
		freed, err = d.scanOne(ctx, d.sql.free, []any{&waited, new(any)}, keyOf(h.Name), h.Owner, notify)
		return err
	})
	return freed, waited, err
}

func (d *rowDialect) Drop(ctx context.Context, h sqlrow.HoldKey) (dropped, waited bool, err error) {
	err = notifying(true, func(notify bool) error {
		dropped, err = d.scanOne(ctx, d.sql.drop, []any{&waited, new(any)}, keyOf(h.Name), sqlrow.Own(h.Owner), notify)
		return err
	})
	return dropped, waited, err
}

func (d *rowDialect) Extend(ctx context.Context, holds []sqlrow.HoldKey, e sqlrow.Extension) (n int, until int64, err error) {
	names, owners := make([]string, len(holds)), make([]string, len(holds))
	for i, h := range holds {
		names[i], owners[i] = h.Name, h.Owner
	}
	text := d.sql.extend
	if e.Wait {
		text = d.sql.await
	}
	untils, err := scanAll(ctx, d, func(rows *sql.Rows) (u int64, err error) { return u, rows.Scan(&u) },
		text, keyList(names), textList(owners), e.Floor, e.TTL.Microseconds())
	for _, u := range untils {
		until = u
	}
	return len(untils), until, err
}

func (d *rowDialect) Rewrite(ctx context.Context, w sqlrow.Rewriting) (bool, error) {
	n, err := d.exec(ctx, d.sql.rewrite, w.Key[:], string(w.Old), string(w.New), w.Until, w.Number, w.Earliest, w.Latest)
	return n == 1, err
}

func (d *rowDialect) Read(ctx context.Context, names []string) (now int64, found []sqlrow.Row, err error) {
	found, err = scanAll(ctx, d, func(rows *sql.Rows) (sqlrow.Row, error) {
		var k taken
		err := rows.Scan(k.rowColumns()...)
		now = k.now
		return k.read(), err
	}, d.sql.read, keyList(names))
	if err == nil && len(found) == 0 {
		err = errReplica
	}
	noRow := func(r sqlrow.Row) bool { return r.Key == sqlrow.Key{} }
	return now, slices.DeleteFunc(found, noRow), err
}

// errReplica is returned if a replica answered.
var errReplica = errors.New("a replica has answered, which may not know the latest changes: the connections must be to the primary")

func (d *rowDialect) Insert(ctx context.Context, r sqlrow.Row) (bool, error) {
	n, err := d.exec(ctx, d.sql.insert, r.Key[:], r.Name, int64(r.Kind), int64(r.Limit), r.Number, r.Owner, r.Granted, r.Since, r.Until, string(r.Meta), string(r.Claims), r.Claimed, r.Waiting, r.Earliest, r.Latest)
	return n == 1, err
}

func (d *rowDialect) Swap(ctx context.Context, r sqlrow.Row, frees bool) (done, waited bool, err error) {
	err = notifying(frees, func(notify bool) error {
		done, err = d.scanOne(ctx, d.sql.swap, []any{&waited, new(any)}, r.Key[:], r.Rev, int64(r.Kind), int64(r.Limit), r.Number, r.Owner, r.Granted, r.Since, r.Until, string(r.Meta), string(r.Claims), r.Claimed, notify, r.Earliest, r.Latest)
		return err
	})
	return done, waited, err
}

func (d *rowDialect) Mark(ctx context.Context, k sqlrow.Key, span time.Duration) error {
	_, err := d.exec(ctx, d.sql.mark, k[:], span.Microseconds())
	return err
}

func (d *rowDialect) Names(ctx context.Context, prefix, after string, limit int) ([]string, error) {
	return scanAll(ctx, d, func(rows *sql.Rows) (name string, err error) { return name, rows.Scan(&name) },
		d.sql.names, []byte(prefix), []byte(after), int64(limit))
}

// notifying runs a statement, which notifies listeners if notify is set. If the server's notification
// queue is full, the statement was undone, and is repeated without notifying. Waiters then poll.
func notifying(notify bool, statement func(notify bool) error) error {
	err := statement(notify)
	if notify && sqlState(err) == queueFull {
		return statement(false)
	}
	return err
}

// scanOne runs a statement that returns one row or none: false.
func (d *rowDialect) scanOne(ctx context.Context, query string, into []any, args ...any) (bool, error) {
	err := retry(ctx, func() error { return d.queryRow(ctx, query, args...).Scan(into...) })
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	return err == nil, err
}

// scanAll runs a query and scans its rows.
func scanAll[T any](ctx context.Context, d *rowDialect, scan func(*sql.Rows) (T, error), query string, args ...any) (all []T, err error) {
	err = retry(ctx, func() error {
		rows, err := d.query(ctx, query, args...)
		if err != nil {
			return err
		}
		defer rows.Close()
		for all = nil; rows.Next(); {
			one, err := scan(rows)
			if err != nil {
				return err
			}
			all = append(all, one)
		}
		return rows.Err()
	})
	return all, err
}

// exec runs a statement, and returns the number of changed rows.
func (d *rowDialect) exec(ctx context.Context, query string, args ...any) (n int64, err error) {
	err = retry(ctx, func() error {
		done, err := d.db.ExecContext(ctx, query, append(d.queryArgs(), args...)...)
		if err == nil {
			n, err = done.RowsAffected()
		}
		return err
	})
	return n, err
}

// maxTries bounds how often an aborted statement is tried.
const maxTries = 20

// retry repeats a statement while PostgreSQL aborts it because of others.
func retry(ctx context.Context, statement func() error) (err error) {
	for n := range maxTries {
		if err = statement(); !aborted(err) {
			break
		}
		if wait.Sleep(ctx, rand.N(time.Duration(n+1)*time.Millisecond)) != nil {
			break
		}
	}
	return explainStatement(err)
}

// aborted reports whether PostgreSQL has undone the whole statement, or has not begun it since it ended an
// idle session.
func aborted(err error) bool {
	c := sqlState(err)
	return c == conflict || c == deadlock || c == idleTooLong
}

func nilIfEmpty(b []byte) []byte {
	if len(b) == 0 {
		return nil
	}
	return b
}

// keyOf returns the key of a name as a parameter.
func keyOf(name string) []byte {
	k := sqlrow.KeyOf(name)
	return k[:]
}

// keyList returns an array of keys in PostgreSQL's notation, which any driver can send.
func keyList(names []string) string {
	texts := make([]string, len(names))
	for i, name := range names {
		texts[i] = `\x` + hex.EncodeToString(keyOf(name))
	}
	return textList(texts)
}

var escapeInList = strings.NewReplacer(`\`, `\\`, `"`, `\"`)

// textList is keyList for texts.
func textList(texts []string) string {
	quoted := make([]string, len(texts))
	for i, text := range texts {
		quoted[i] = `"` + escapeInList.Replace(text) + `"`
	}
	return "{" + strings.Join(quoted, ",") + "}"
}

// rowStatements are the statements for one table. Parameters have casts, so that they mean the
// same however a driver sends them.
type rowStatements struct {
	take, contend, share, free, freeQuietly, drop, rewrite, extend, await, read, insert, swap, mark, names string
}

// bounded lets a statement wait for a locked row no longer than a second, since it occupies a connection.
// The setting ends with the statement, which is a transaction of its own.
const bounded = "set_config('lock_timeout', '1s', true) <> ''"

// unflushed lets a statement commit without waiting for the disk, or for standbys. It is for what a crash may take back: a release,
// whose lock then ends with its TTL, and a place in the queue. A grant is flushed, and with it all that came before.
// Each change raises rev to the clock at least: a rev that a crash took back must not return, or who has read it would write over
// what it has not read.
const unflushed = "set_config('synchronous_commit', 'off', true) <> ''"

// notifyIfWaiting notifies listeners, if there are any and no exclusive hold keeps them out. A release without listeners
// should not pay for a notification. If there is a queue, only clients are notified whose places the change lets in, each on
// its own channel; otherwise all are.
const notifyIfWaiting = `CASE WHEN t.waiting <= {now} OR t.until > {now} THEN NULL
	WHEN NOT EXISTS (SELECT FROM {lines} WHERE {place}) THEN pg_notify('{channel}', encode(t.k, 'hex'))::text
	WHEN strpos(t.claims, '"mode":3,') + strpos(t.claims, '"mode":4,') = 0 THEN (SELECT {wake}::text FROM {lines} WHERE {place} LIMIT 1)
	ELSE (SELECT count({wake})::text FROM (SELECT line, nth, first, bool_and({mode} = first) OVER (ORDER BY nth) AS head
		FROM (SELECT line, row_number() OVER w AS nth, first_value({mode}) OVER w AS first FROM {lines} WHERE {place} WINDOW w AS (ORDER BY n)) y) x
		WHERE head AND CASE first WHEN '3' THEN true WHEN '4' THEN nth <= t.lim - {holds} ELSE nth = 1 AND {holds} = 0 END) END`

// The claims of a row, each of which is a line, and parts of a line. Functions of text are used since the row may have any
// text, and since a regular expression over all claims takes ms.
var lineParts = strings.NewReplacer(
	"{lines}", `unnest(string_to_array(t.claims, E'\n')) WITH ORDINALITY AS l(line, n)`,
	"{place}", `(strpos(line, '"ticket":') > 0 AND {end} > {now})`,
	"{mode}", `left(split_part(line, '"mode":', 2), 1)`,
	"{wake}", wakeOne,
)

// wakeOne notifies the client of a place of the end of its Owner. Everyone who may log in can listen, and a whole Owner would
// be enough to release its hold.
const wakeOne = `pg_notify('{channel}' || coalesce('_' || nullif(left(split_part(split_part(line, '"address":"', 2), '"', 1), 32), ''), ''),
	encode(t.k, 'hex') || ' ' || right(split_part(line, '"', 4), 8))`

// holdLines is how many claims are holds.
const holdLines = `(SELECT count(*) FROM {lines} WHERE strpos(line, '"number":') > 0 AND {end} > {now})`

// endOfLine is when the claim of a line ends; 0 if the line is none.
const endOfLine = `coalesce(substring(split_part(line, '"until":', 2) FROM '^[0-9]{1,18}')::bigint, 0)`

// claimText splits the claims of the row $1 at those that begin with {own}: p is where that is, or 0. With another text
// between pre and post, that replaces the claim, or comes after the last one. The row is locked, so these
// are its latest values. PostgreSQL checks conditions on them before it locks the row, and again then: an attempt
// that only waits locks nothing, so it has nothing to commit.
const claimText = `(SELECT *, CASE WHEN p > 0 THEN left(b, p - 1) WHEN b = '' THEN '[' ELSE left(b, -1) || E',\n' END AS pre,
	CASE WHEN p > 0 AND strpos(substr(b, p), E'\n') > 0 THEN E',\n' || substr(b, p + strpos(substr(b, p), E'\n')) ELSE ']' END AS post
	FROM (SELECT *, strpos(b, {own}) AS p FROM (SELECT k, until, owner, kind, lim, number, rev, claimed,
		CASE WHEN claimed > {now} THEN coalesce(claims, '') ELSE '' END AS b
		FROM {t} WHERE k = $1::bytea AND {bounded} FOR NO KEY UPDATE) l1) l2
	WHERE b = '' OR {lined b})`

// lined is true if each claim has a line, as this version writes them. Other rows are left to who reads them as JSON.
func lined(text string) string {
	return "(" + text + ` LIKE '[{"owner":"%}]' AND strpos(` + text + `, '},{"owner":') = 0)`
}

// without is the text of claimText without the claim.
const without = `CASE WHEN post <> ']' THEN pre || substr(post, 3) WHEN pre = '[' THEN '' ELSE left(pre, -2) || ']' END`

// contendText decides an attempt to hold alone. It reads each value of the row before it writes it. What it returns is read
// afterwards: the last hold may have been the same owner's, and has ended if that gets a place.
const contendText = `UPDATE {t} t SET rev = greatest(rev + 1, {now}), kind = $3::smallint,
	number = CASE WHEN {may} THEN {next} ELSE number END,
	owner = CASE WHEN {may} THEN $2::text ELSE owner END,
	granted = CASE WHEN {may} THEN {next} ELSE granted END,
	since = CASE WHEN until <= {now} AND {may} THEN {now} ELSE since END,
	until = CASE WHEN {may} THEN greatest(until, {now} + $4::bigint) ELSE until END,
	meta = CASE WHEN {may} THEN nullif($9::text, '') ELSE meta END,
	claims = CASE WHEN NOT {may} THEN CASE WHEN claimed > {now} THEN left(claims, -1) || E',\n' ELSE '[' END || $7::text || $3::smallint ||
			',"ticket":' || rev + 1 || ',"since":' || {now} || ',"until":' || {now} + $6::bigint || $8::text || ']'
		WHEN claimed <= {now} THEN NULL WHEN until > {now} THEN claims
		WHEN strpos(claims, E'\n') > 0 THEN '[' || substr(claims, strpos(claims, E'\n') + 1) END,
	claimed = CASE WHEN NOT {may} AND {unflushed} THEN greatest(claimed, {now} + $6::bigint) WHEN until > {now} OR strpos(claims, E'\n') > 0 THEN claimed ELSE 0 END
	WHERE k = $1::bytea AND number < {max} AND (kind = $3::smallint OR until <= {now} AND claimed <= {now})
	AND (claimed <= {now} OR {lined claims}) AND ({may} OR $5::boolean AND NOT {mine} AND (claimed <= {now} OR strpos(claims, $7::text) = 0))
	AND {bounded} RETURNING {mine}, {now}, {row}`

var contendParts = strings.NewReplacer(
	"{may}", `({mine} OR until <= {now} AND (claimed <= {now} OR starts_with(claims, '[' || $7::text || $3::smallint || ',"ticket"')))`,
	"{next}", "greatest(number + 1, {now})",
)

// shareText is contendText for readers and permits.
const shareText = `UPDATE {t} t SET rev = greatest(t.rev + 1, {now}), kind = $9::smallint, lim = CASE WHEN $3::smallint = 4 THEN $10::integer ELSE t.lim END,
	number = CASE WHEN may THEN next ELSE t.number END,
	owner = CASE WHEN NOT may THEN t.owner END, granted = CASE WHEN may THEN 0 ELSE t.granted END,
	since = CASE WHEN may THEN 0 ELSE t.since END, until = CASE WHEN may THEN 0 ELSE t.until END, meta = CASE WHEN NOT may THEN t.meta END,
	claims = pre || $7::text || $3::smallint || CASE WHEN may THEN ',"number":' || next ELSE ',"ticket":' || t.rev + 1 END
		|| ',"since":' || {now} || ',"until":' || {now} + life || $8::text || post,
	claimed = CASE WHEN may OR {unflushed} THEN greatest(t.claimed, {now} + life) END
	FROM (SELECT *, CASE WHEN may THEN $4::bigint ELSE $6::bigint END AS life
		FROM (SELECT k, p, pre, post, greatest(number + 1, {now}) AS next, until <= {now} AND CASE WHEN $3::smallint = 3
				THEN strpos(pre, '"mode":2,') = 0 ELSE length(pre) - length(replace(pre, E'\n', '')) < $10::integer END AS may
			FROM {claims} l3 WHERE number < {max} AND (until <= {now} AND b = '' OR kind = $9::smallint AND ($3::smallint <> 4 OR lim = $10::integer))
			AND CASE WHEN $3::smallint = 3 THEN strpos(b, '"mode":4,') ELSE strpos(b, '"mode":2,') + strpos(b, '"mode":3,') END + strpos(b, '"mode":1,') = 0
			AND NOT {mine} AND (p = 0 OR strpos(substr(b, p), $7::text || $3::smallint || ',"ticket"') = 1)) l4) s
	WHERE t.k = s.k AND (may OR p = 0 AND $5::boolean) RETURNING may, {now}, {row}`

// dropText removes a claim that has not ended.
const dropText = `UPDATE {t} t SET rev = greatest(t.rev + 1, {now}), claims = nullif({without}, ''), claimed = CASE WHEN pre = '[' AND post = ']' THEN 0 ELSE t.claimed END
	FROM {claims} s WHERE t.k = s.k AND p > 0 AND {unflushed} AND substring(substr(b, p) FROM '"until":([0-9]{1,18})')::bigint > {now}
	RETURNING t.waiting > {now}, CASE WHEN $3::boolean THEN {notify} END`

const freeText = `UPDATE {t} t SET owner = NULL, meta = NULL, granted = 0, since = 0, until = 0, rev = greatest(rev + 1, {now})
	WHERE k = $1::bytea AND owner = $2::text AND until > {now} AND {bounded} AND {unflushed}`

// extendHolds returns a statement that renews holds, given how it treats locked rows.
func extendHolds(condition, locking string) string {
	return `UPDATE {t} t SET until = greatest(until, {now} + $4::bigint),
	number = greatest(number, $3::bigint), rev = greatest(rev + 1, {now})
	FROM (SELECT l.k FROM {t} l JOIN unnest($1::text::bytea[], $2::text::text[]) AS h(k, owner) ON l.k = h.k
	WHERE l.owner = h.owner AND l.until > {now}` + condition + ` FOR NO KEY UPDATE OF l` + locking + `) s
	WHERE t.k = s.k RETURNING {now} + $4::bigint`
}

// newRowStatements fills in the table, an identifier, and the channel, a word.
func newRowStatements(table, channel string) *rowStatements {
	fill := func(sql string) string {
		for _, by := range []*strings.Replacer{
			strings.NewReplacer("{notify}", notifyIfWaiting, "{claims}", claimText, "{without}", without),
			strings.NewReplacer("{holds}", holdLines), lineParts, contendParts,
			strings.NewReplacer("{lined b}", lined("b"), "{lined claims}", lined("claims"), "{bounded}", bounded, "{unflushed}", unflushed, "{end}", endOfLine, "{mine}", "(until > {now} AND owner IS NOT DISTINCT FROM $2::text)"),
			strings.NewReplacer("{t}", table, "{now}", clock, "{channel}", channel, "{row}", rowColumns(), "{max}", fmt.Sprint(int64(sqlrow.MaxNumber))),
		} {
			sql = by.Replace(sql)
		}
		return sql
	}
	return &rowStatements{
		take: fill(`UPDATE {t} SET number = greatest(number + 1, {now}), granted = greatest(number + 1, {now}), kind = $3::smallint, lim = 0, owner = $2::text,
	since = CASE WHEN owner = $2::text AND until > {now} THEN since ELSE {now} END, until = greatest(until, {now} + $4::bigint),
	meta = nullif($5::text, ''), claims = NULL, claimed = 0, rev = greatest(rev + 1, {now})
	WHERE k = $1::bytea AND claimed <= {now} AND number < $6::bigint
	AND (until <= {now} OR owner = $2::text AND kind = $3::smallint) AND {bounded} RETURNING number`),
		contend: fill(contendText),
		share:   strings.ReplaceAll(fill(shareText), "{own}", "$7::text"),
		drop:    strings.ReplaceAll(fill(dropText), "{own}", "$2::text"),
		free:    fill(freeText + ` RETURNING t.waiting > {now}, CASE WHEN $3::boolean THEN {notify} END`),
		// To prepare a notification takes the server as long as all the rest, even if it is not sent.
		freeQuietly: fill(freeText + ` AND t.waiting <= {now}`),
		rewrite: fill(`UPDATE {t} SET claims = replace(claims, $2::text, $3::text), claimed = greatest(claimed, $4::bigint),
	number = greatest(number, $5::bigint), rev = greatest(rev + 1, {now})
	WHERE k = $1::bytea AND claimed > {now} AND {now} BETWEEN $6::bigint AND $7::bigint AND strpos(claims, $2::text) > 0 AND {bounded}`),
		extend: fill(extendHolds("", " SKIP LOCKED")),
		await:  fill(extendHolds(" AND {bounded}", "")),
		read:   fill(`SELECT n.now, {row} FROM (SELECT {now} AS now WHERE NOT pg_is_in_recovery()) n LEFT JOIN {t} t ON t.k = ANY ($1::text::bytea[])`),
		insert: fill(`INSERT INTO {t} (k, name, kind, lim, number, owner, granted, since, until, meta, claims, claimed, rev, waiting)
	SELECT $1::bytea, $2::text, $3::smallint, $4::integer, $5::bigint, nullif($6::text, ''), $7::bigint, $8::bigint,
	$9::bigint, nullif($10::text, ''), nullif($11::text, ''),
	$12::bigint, 1, $13::bigint WHERE {now} BETWEEN $14::bigint AND $15::bigint ON CONFLICT (k) DO NOTHING`),
		swap: fill(`UPDATE {t} t SET kind = $3::smallint, lim = $4::integer, number = $5::bigint, owner = nullif($6::text, ''),
	granted = $7::bigint, since = $8::bigint, until = $9::bigint, meta = nullif($10::text, ''),
	claims = nullif($11::text, ''), claimed = $12::bigint, rev = greatest(rev + 1, {now})
	WHERE k = (SELECT k FROM {t} WHERE k = $1::bytea AND rev = $2::bigint AND {now} BETWEEN $14::bigint AND $15::bigint
	FOR NO KEY UPDATE SKIP LOCKED) RETURNING t.waiting > {now}, CASE WHEN $13::boolean THEN {notify} END`),
		mark: fill(`UPDATE {t} SET waiting = {now} + $2::bigint WHERE k = $1::bytea AND waiting < {now} + $2::bigint AND {bounded}`),
		names: fill(`SELECT name FROM {t} WHERE (until > {now} OR claimed > {now})
	AND convert_to(name, 'UTF8') >= $1::bytea AND convert_to(name, 'UTF8') > $2::bytea ORDER BY convert_to(name, 'UTF8') LIMIT $3::integer`),
	}
}

// rowColumns returns the columns that Read scans. A key without a row has no k.
func rowColumns() string {
	var list strings.Builder
	list.WriteString("encode(t.k, 'hex')") // which the setting bytea_output does not change
	for _, c := range rowTable("").columns[1:] {
		zero := "0"
		if c.kind == "text" {
			zero = "''"
		}
		fmt.Fprintf(&list, ", coalesce(t.%s, %s)", c.name, zero)
	}
	return list.String()
}
