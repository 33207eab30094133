package mysqllock

import (
	"strconv"
	"strings"
)

// What of a row is written by Insert and Swap, and what Look reads, in the order of
// parameters and results.
var (
	rowState   = []string{"kind", "lim", "number", "owner", "granted", "since", "until", "meta", "address", "claims", "claimed"}
	rowColumns = append([]string{"k", "name", "rev", "waiting"}, rowState...)
)

// Assignments take effect one after the other, or at once where sql_mode has
// SIMULTANEOUS_ASSIGNMENT. So a column is read before it is set, and nothing reads what
// was set.

// sqlTake tells the number through the insert id, for which no other round trip is needed.
const sqlTake = `UPDATE {table} SET
granted = LAST_INSERT_ID(GREATEST(number + 1, {now})), number = GREATEST(number + 1, {now}),
since = IF(until > {now}, since, {now}), kind = ?, lim = 0, owner = ?, until = GREATEST(until, {now} + ?), meta = ?, address = ?,
claims = NULL, claimed = 0, rev = rev + 1
WHERE k = ? AND claimed <= {now} AND number < ? AND (until <= {now} OR owner = ? AND kind = ?)`

// sqlFree tells through the insert id whether somebody listens.
const sqlFree = `UPDATE {table} SET
waiting = LAST_INSERT_ID(IF(waiting > {now}, waiting, 0)),
owner = NULL, granted = 0, since = 0, until = 0, meta = NULL, address = NULL, rev = rev + 1
WHERE k = ? AND owner = ? AND until > {now}`

// sqlSwap tells it too.
const sqlSwap = `{update} (SELECT k AS id FROM {table} FORCE INDEX (PRIMARY)
WHERE k = ? AND rev = ? AND {now} BETWEEN ? AND ? LIMIT 1 FOR UPDATE {skip}) s STRAIGHT_JOIN {table} ON k = s.id SET
waiting = LAST_INSERT_ID(IF(waiting > {now}, waiting, 0)), {state = ?}, rev = rev + 1`

// sqlExtend renews many holds, and tells the end of their lives through the insert id. The
// keys lead to the rows, and each must have its own owner. A row that is locked is left
// out, and no other row is locked on the way: LIMIT makes a table of the keys, which comes
// first.
const sqlExtend = `{update} (SELECT k AS id FROM {table} FORCE INDEX (PRIMARY)
WHERE k IN ({keys}) AND (k, owner) IN ({holds}) AND until > {now} LIMIT {count} FOR UPDATE {skip}) s
STRAIGHT_JOIN {table} FORCE INDEX (PRIMARY) ON k = s.id SET
until = {longer}, number = GREATEST(number, ?),
address = ?, rev = rev + 1`

// sqlLook has a row of its own for the clock, which is wanted also if nothing is found.
const sqlLook = `SELECT {now}, {columns} FROM (SELECT 1 AS one) o LEFT JOIN {table} l ON l.k IN ({keys})`

const sqlInsert = `INSERT IGNORE INTO {table} ({columns}) SELECT ?, ?, 1, 0, {?} FROM (SELECT 1) one WHERE {now} BETWEEN ? AND ?`

const sqlMark = `UPDATE {table} SET waiting = GREATEST(waiting, {now} + ?) WHERE k = ?`

// sqlNames goes by the key: names are longer than what the server sorts by.
const sqlNames = `SELECT name FROM {table}
WHERE k > ? AND (until > {now} OR claimed > {now}) AND LEFT(name, ?) = ? ORDER BY k LIMIT ?`

// rowSQL completes a statement for so many holds.
func rowSQL(text, table string, v server, holds int) string {
	return strings.NewReplacer(
		"{table}", table, "{now}", clockSQL, "{longer}", longerSQL("until", "?", "?"), "{update}", v.updateJoin(), "{skip}", v.skipLocked(),
		"{columns}", strings.Join(rowColumns, ", "),
		"{state = ?}", strings.Join(rowState, " = ?, ")+" = ?",
		"{?}", listOf("?", len(rowState)), "{count}", strconv.Itoa(holds),
		"{keys}", listOf("?", holds), "{holds}", listOf("(?, ?)", holds),
	).Replace(text)
}

func listOf(what string, n int) string { return strings.Repeat(what+", ", n-1) + what }
