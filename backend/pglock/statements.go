package pglock

import (
	"fmt"
	"strings"
)

// rowStatements are those of strategy Row for one table. Parameters have casts, so that
// they mean the same however a driver sends them.
type rowStatements struct{ take, free, extend, await, look, insert, swap, mark, names string }

// clock is the server's, in µs since 1970, when the statement came. A statement that had to
// wait for a row thus takes the lock for less time than was asked, never for more than the
// client knows, and believes in a hold for longer, never for less.
const clock = "(date_part('epoch', statement_timestamp()) * 1000000)::bigint"

// bounded makes a statement wait for a locked row no longer than a second: what waits has a
// connection. The setting ends with the statement, which is a transaction of its own.
const bounded = "set_config('lock_timeout', '1s', true) <> ''"

// tell notifies those who listen, if there are any; what notifies nobody costs nothing.
const tell = "CASE WHEN waiting > {now} THEN pg_notify('{channel}', encode(k, 'hex')) END"

// extend renews holds, by how it deals with rows that are locked.
func extend(which, how string) string {
	return `UPDATE {t} t SET until = greatest({now} + $4::bigint, CASE WHEN $5::boolean THEN 0 ELSE until END),
	number = greatest(number, $3::bigint), rev = rev + 1
	FROM (SELECT l.k FROM {t} l JOIN unnest($1::text::bytea[], $2::text::text[]) AS h(k, owner) ON l.k = h.k
	WHERE l.owner = h.owner AND l.until > {now}` + which + ` FOR NO KEY UPDATE OF l` + how + `) s
	WHERE t.k = s.k RETURNING {now} + $4::bigint`
}

// newRowStatements fills in the table and the channel, which are words.
func newRowStatements(table, channel string) *rowStatements {
	fill := func(sql string) string {
		sql = strings.NewReplacer("{tell}", tell, "{bounded}", bounded).Replace(sql)
		return strings.NewReplacer("{t}", quote(table), "{now}", clock, "{channel}", channel, "{row}", rowColumns).Replace(sql)
	}
	return &rowStatements{
		take: fill(`UPDATE {t} SET number = greatest(number + 1, {now}), granted = greatest(number + 1, {now}), kind = $3::smallint, lim = 0, owner = $2::text,
	since = CASE WHEN owner = $2::text AND until > {now} THEN since ELSE {now} END, until = greatest(until, {now} + $4::bigint),
	meta = nullif($5::text, ''), claims = NULL, claimed = 0, rev = rev + 1
	WHERE k = $1::bytea AND claimed <= {now} AND number < $6::bigint
	AND (until <= {now} OR owner = $2::text AND kind = $3::smallint) AND {bounded} RETURNING number`),
		free: fill(`UPDATE {t} SET owner = NULL, meta = NULL, granted = 0, since = 0, until = 0, rev = rev + 1
	WHERE k = $1::bytea AND owner = $2::text AND until > {now} AND {bounded} RETURNING waiting > {now}, CASE WHEN $3::boolean THEN {tell} END`),
		extend: fill(extend("", " SKIP LOCKED")),
		await:  fill(extend(" AND {bounded}", "")),
		look:   fill(`SELECT n.now, {row} FROM (SELECT {now} AS now WHERE NOT pg_is_in_recovery()) n LEFT JOIN {t} t ON t.k = ANY ($1::text::bytea[])`),
		insert: fill(`INSERT INTO {t} (k, name, kind, lim, number, owner, granted, since, until, meta, claims, claimed, rev, waiting)
	SELECT $1::bytea, $2::text, $3::smallint, $4::integer, $5::bigint, nullif($6::text, ''), $7::bigint, $8::bigint,
	$9::bigint, nullif($10::text, ''), nullif($11::text, ''),
	$12::bigint, 1, $13::bigint WHERE {now} BETWEEN $14::bigint AND $15::bigint ON CONFLICT (k) DO NOTHING`),
		swap: fill(`UPDATE {t} SET kind = $3::smallint, lim = $4::integer, number = $5::bigint, owner = nullif($6::text, ''),
	granted = $7::bigint, since = $8::bigint, until = $9::bigint, meta = nullif($10::text, ''),
	claims = nullif($11::text, ''), claimed = $12::bigint, rev = rev + 1
	WHERE k = (SELECT k FROM {t} WHERE k = $1::bytea AND rev = $2::bigint AND {now} BETWEEN $14::bigint AND $15::bigint
	FOR NO KEY UPDATE SKIP LOCKED) RETURNING waiting > {now}, CASE WHEN $13::boolean THEN {tell} END`),
		mark: fill(`UPDATE {t} SET waiting = {now} + $2::bigint WHERE k = $1::bytea AND waiting < {now} + $2::bigint AND {bounded}`),
		names: fill(`SELECT name FROM {t} WHERE (until > {now} OR claimed > {now})
	AND convert_to(name, 'UTF8') >= $1::bytea AND convert_to(name, 'UTF8') > $2::bytea ORDER BY convert_to(name, 'UTF8') LIMIT $3::integer`),
	}
}

// rowColumns are what scan reads. A key that has no row has no k.
var rowColumns = func() string {
	var list strings.Builder
	list.WriteString("encode(t.k, 'hex')") // as the setting bytea_output does not change it
	for _, c := range rowTable("").columns[1:] {
		zero := "0"
		if c.kind == "text" {
			zero = "''"
		}
		fmt.Fprintf(&list, ", coalesce(t.%s, %s)", c.name, zero)
	}
	return list.String()
}()
