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
	found, err := d.scanOne(ctx, d.sql.take, []any{&number}, keyOf(t.Name), t.Owner, int64(t.Kind), t.TTL.Microseconds(),
		string(t.Meta), int64(sqlrow.MaxNumber))
	if err != nil || !found { // the number may be that of a try that was rolled back
		return 0, err
	}
	return number, nil
}

func (d *rowDialect) Free(ctx context.Context, h sqlrow.HoldKey) (freed, waited bool, err error) {
	err = notifying(true, func(notify bool) error {
		freed, err = d.scanOne(ctx, d.sql.free, []any{&waited, new(any)}, keyOf(h.Name), h.Owner, notify)
		return err
	})
	return freed, waited, err
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

func (d *rowDialect) Read(ctx context.Context, names []string) (now int64, found []sqlrow.Row, err error) {
	found, err = scanAll(ctx, d, func(rows *sql.Rows) (r sqlrow.Row, err error) {
		var k sql.NullString
		var meta, claims []byte
		err = rows.Scan(&now, &k, &r.Name, &r.Kind, &r.Limit, &r.Number, &r.Owner, &r.Granted, &r.Since, &r.Until, &meta, &claims, &r.Claimed, &r.Rev, &r.Waiting)
		r.Key, _ = parseKey(k.String)
		r.Meta, r.Claims = nilIfEmpty(meta), nilIfEmpty(claims)
		return r, err
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
type rowStatements struct{ take, free, extend, await, read, insert, swap, mark, names string }

// bounded lets a statement wait for a locked row no longer than a second, since it occupies a connection.
// The setting ends with the statement, which is a transaction of its own.
const bounded = "set_config('lock_timeout', '1s', true) <> ''"

// notifyIfWaiting notifies listeners, if there are any. A release without listeners should not pay for a
// notification.
const notifyIfWaiting = "CASE WHEN waiting > {now} THEN pg_notify('{channel}', encode(k, 'hex') || coalesce(" + firstPlace + ", '')) END"

// firstPlace is the end of the owner of the first claim if that is a living place in the queue for an exclusive hold: then
// the release concerns no other waiter. Otherwise, and if the claims are written in another way, it is NULL. Everyone who may
// log in can listen, and a whole owner would be enough to release its hold.
const firstPlace = `(SELECT ' ' || right(m[1], 8) FROM regexp_match(claims,
	'^[[][{]"owner":"([A-Za-z0-9_-]+)","mode":[12],"ticket":[0-9]{1,18},"since":[0-9]{1,18},"until":([0-9]{1,18})[,}]') m
	WHERE m[2]::bigint > {now})`

// extendHolds returns a statement that renews holds, given how it treats locked rows.
func extendHolds(condition, locking string) string {
	return `UPDATE {t} t SET until = greatest(until, {now} + $4::bigint),
	number = greatest(number, $3::bigint), rev = rev + 1
	FROM (SELECT l.k FROM {t} l JOIN unnest($1::text::bytea[], $2::text::text[]) AS h(k, owner) ON l.k = h.k
	WHERE l.owner = h.owner AND l.until > {now}` + condition + ` FOR NO KEY UPDATE OF l` + locking + `) s
	WHERE t.k = s.k RETURNING {now} + $4::bigint`
}

// newRowStatements fills in the table, an identifier, and the channel, a word.
func newRowStatements(table, channel string) *rowStatements {
	fill := func(sql string) string {
		sql = strings.NewReplacer("{notify}", notifyIfWaiting, "{bounded}", bounded).Replace(sql)
		return strings.NewReplacer("{t}", table, "{now}", clock, "{channel}", channel, "{row}", rowColumns()).Replace(sql)
	}
	return &rowStatements{
		take: fill(`UPDATE {t} SET number = greatest(number + 1, {now}), granted = greatest(number + 1, {now}), kind = $3::smallint, lim = 0, owner = $2::text,
	since = CASE WHEN owner = $2::text AND until > {now} THEN since ELSE {now} END, until = greatest(until, {now} + $4::bigint),
	meta = nullif($5::text, ''), claims = NULL, claimed = 0, rev = rev + 1
	WHERE k = $1::bytea AND claimed <= {now} AND number < $6::bigint
	AND (until <= {now} OR owner = $2::text AND kind = $3::smallint) AND {bounded} RETURNING number`),
		free: fill(`UPDATE {t} SET owner = NULL, meta = NULL, granted = 0, since = 0, until = 0, rev = rev + 1
	WHERE k = $1::bytea AND owner = $2::text AND until > {now} AND {bounded} RETURNING waiting > {now}, CASE WHEN $3::boolean THEN {notify} END`),
		extend: fill(extendHolds("", " SKIP LOCKED")),
		await:  fill(extendHolds(" AND {bounded}", "")),
		read:   fill(`SELECT n.now, {row} FROM (SELECT {now} AS now WHERE NOT pg_is_in_recovery()) n LEFT JOIN {t} t ON t.k = ANY ($1::text::bytea[])`),
		insert: fill(`INSERT INTO {t} (k, name, kind, lim, number, owner, granted, since, until, meta, claims, claimed, rev, waiting)
	SELECT $1::bytea, $2::text, $3::smallint, $4::integer, $5::bigint, nullif($6::text, ''), $7::bigint, $8::bigint,
	$9::bigint, nullif($10::text, ''), nullif($11::text, ''),
	$12::bigint, 1, $13::bigint WHERE {now} BETWEEN $14::bigint AND $15::bigint ON CONFLICT (k) DO NOTHING`),
		swap: fill(`UPDATE {t} SET kind = $3::smallint, lim = $4::integer, number = $5::bigint, owner = nullif($6::text, ''),
	granted = $7::bigint, since = $8::bigint, until = $9::bigint, meta = nullif($10::text, ''),
	claims = nullif($11::text, ''), claimed = $12::bigint, rev = rev + 1
	WHERE k = (SELECT k FROM {t} WHERE k = $1::bytea AND rev = $2::bigint AND {now} BETWEEN $14::bigint AND $15::bigint
	FOR NO KEY UPDATE SKIP LOCKED) RETURNING waiting > {now}, CASE WHEN $13::boolean THEN {notify} END`),
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
