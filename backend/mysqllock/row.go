package mysqllock

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"errors"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/claims"
	"github.com/distlock/distlock/internal/engine"
)

// rowTable is the table of strategy Row.
func rowTable(o Options) tableSpec {
	return tableSpec{table: o.Table, gate: true, about: `strategy row: one row for each name that was ever locked.
-- Deleting rows of locks that are free is safe only if the clock never goes back.`, columns: []columnSpec{
		{name: "k", ddl: "BINARY(32) NOT NULL", note: "SHA-256 of the name"},
		{name: "name", ddl: "MEDIUMBLOB NOT NULL"},
		{name: "version", ddl: "BIGINT NOT NULL", note: "raised by each change; a fence is 1024 times that"},
		{name: "until", ddl: "BIGINT NOT NULL", note: "when the last claim ends"},
		{name: "void", ddl: "BIGINT NOT NULL", note: "what is stamped with less comes too late"},
		{name: "claims", ddl: "MEDIUMBLOB NOT NULL", note: "a line for each hold and place in the queue"},
	}}
}

func newRow(ctx context.Context, s *database) (strategy, error) {
	if err := s.prepare(ctx); err != nil {
		return nil, err
	}
	if err := s.checkClocks(ctx, s.opts.Table, "k"); err != nil {
		return nil, err
	}
	r := &rowStore{database: s, notifier: newNotifier(s.db, s.rest)}
	if err := r.prepareAll(ctx); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return &rowStrategy{engine.New(r, engine.Options{Package: "mysqllock", Name: s.name, Address: r.notifier.Address}), r}, nil
}

// rowStrategy is the strategy Row.
type rowStrategy struct {
	*engine.Backend
	store *rowStore
}

// rowStore implements engine's Store: a row for each name. Each change is one statement that commits by itself. Statements are
// prepared once on each connection, so that each is one round trip in every pool.
type rowStore struct {
	*database
	notifier      *notifier
	end           *statement
	swap          map[swapKind]*statement
	insert, names *statement
	edits, read   [len(sizes)]*statement
	all           []*statement
}

// swapKind tells one statement of a change from another.
type swapKind struct {
	ahead engine.Ahead
	adds  bool // a line
}

// sizes are the numbers of rows that statements are prepared for.
var sizes = [...]int{1, 16, 128, maxRows}

// maxRows is how many rows a statement is about at most.
const maxRows = 512

// sizeFor returns the index of the size for n rows.
func sizeFor(n int) int { return slices.IndexFunc(sizes[:], func(size int) bool { return size >= n }) }

// statement is a prepared statement, with the names of its parameters.
type statement struct {
	*sql.Stmt
	text   string
	params []string
}

// arguments returns the arguments in the order of the parameters. taken and left are user-level locks.
func (s *statement) arguments(c *engine.Change, taken, left string) []any {
	key, args := keyOf(c.Name), make([]any, len(s.params))
	for i, name := range s.params {
		switch name {
		case ":key":
			args[i] = key
		case ":name":
			args[i] = []byte(c.Name)
		case ":version":
			args[i] = c.Version
		case ":void":
			args[i] = c.Void
		case ":until":
			args[i] = c.Until
		case ":since":
			args[i] = c.Since
		case ":stamp":
			args[i] = orMax(c.Stamp)
		case ":before":
			args[i] = orMax(c.Before)
		case ":old":
			args[i] = []byte(c.Old)
		case ":new":
			args[i] = []byte(c.New)
		case ":free":
			args[i] = c.Free
		case ":taken":
			args[i] = taken
		case ":left":
			args[i] = left
		}
	}
	return args
}

// orMax returns a bound; 0 is none.
func orMax(n int64) int64 {
	if n == 0 {
		return math.MaxInt64
	}
	return n
}

// keyOf returns the primary key of a name's row as a parameter.
func keyOf(name string) []byte {
	k := sha256.Sum256([]byte(name))
	return k[:]
}

// Close also closes the prepared statements.
func (s *rowStore) Close() error {
	errs := []error{s.notifier.Close()}
	for _, stmt := range s.all {
		errs = append(errs, stmt.Close())
	}
	return errors.Join(errs...)
}

func (s *rowStore) Read(ctx context.Context, names []string) (list []engine.Seen, err error) {
	for part := range slices.Chunk(names, maxRows) {
		some, err := s.readSome(ctx, part)
		if err != nil {
			return nil, unchanged(err)
		}
		list = append(list, some...)
	}
	return list, nil
}

func (s *rowStore) readSome(ctx context.Context, names []string) (list []engine.Seen, err error) {
	at := sizeFor(len(names))
	args := make([]any, sizes[at])
	for i := range args {
		args[i] = keyOf(names[min(i, len(names)-1)])
	}
	err = s.on(ctx, s.read[at], func(ctx context.Context, p *sql.Stmt) error {
		list, err = readRows(ctx, p, args, names)
		return err
	})
	return list, err
}

func readRows(ctx context.Context, p *sql.Stmt, args []any, names []string) ([]engine.Seen, error) {
	rows, err := p.QueryContext(ctx, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	byKey, now := map[string]engine.Seen{}, int64(0)
	for rows.Next() {
		var seen engine.Seen
		var key, text sql.RawBytes
		if err := rows.Scan(&now, &key, &seen.Version, &seen.Void, &text); err != nil {
			return nil, err
		}
		seen.Text = string(text)
		byKey[string(key)] = seen
	}
	list := make([]engine.Seen, len(names))
	for i, name := range names {
		list[i] = byKey[string(keyOf(name))]
		list[i].Now = now
	}
	return list, answered(rows, now)
}

func (s *rowStore) Swap(ctx context.Context, changes []engine.Change) []engine.Outcome {
	if len(changes) == 1 && !changes[0].Skip && changes[0].Floor == 0 {
		return []engine.Outcome{s.swapOne(ctx, &changes[0])}
	}
	return s.swapAll(ctx, changes)
}

// swapOne makes one change. If a statement has not made it, the row is read; if that is missing, it is inserted.
func (s *rowStore) swapOne(ctx context.Context, c *engine.Change) (out engine.Outcome) {
	stmt := s.swap[swapKind{c.Ahead, c.Ahead != engine.Whole && c.Old == ""}]
	if c.Old != "" && c.New == "" {
		stmt = s.end
	}
	if out = s.change1(ctx, stmt, c); out.Done || out.Err != nil {
		return out
	}
	if out.Seen, out.Err = s.see(ctx, c.Name); out.Err != nil || c.Ahead != engine.Whole || c.Version > 0 || out.Seen.Version > 0 {
		return out
	}
	if out = s.change1(ctx, s.insert, c); !out.Done && out.Err == nil {
		out.Seen, out.Err = s.see(ctx, c.Name)
	}
	return out
}

// see reads a row after a change that was not made.
func (s *rowStore) see(ctx context.Context, name string) (engine.Seen, error) {
	list, err := s.Read(ctx, []string{name})
	if err != nil {
		return engine.Seen{}, driver.Unsent(err)
	}
	return list[0], nil
}

// What a statement tells beside the new version.
const (
	toldOther    = 1 << iota // it has replaced another version
	toldEarly                // the version is ahead of the clock
	toldWaiting              // there are places in the queue
	toldNotified             // they are woken
	toldBits     = iota
)

// change1 runs a statement that makes a change. It tells the version through the insert id, which takes no other round trip.
func (s *rowStore) change1(ctx context.Context, stmt *statement, c *engine.Change) (out engine.Outcome) {
	n, told, err := int64(0), int64(0), errNoSession
	ends := stmt == s.end
	if ends {
		n, told, err = s.notifier.change(ctx, func(taken, left string) []any {
			return s.notifier.release.arguments(c, taken, left)
		})
		err = unchanged(err)
	}
	if errors.Is(err, errNoSession) || undone(err) {
		n, told, err = s.exec(ctx, 500+len(c.Name)+len(c.Old)+len(c.New), stmt, stmt.arguments(c, "", ""))
	}
	if err != nil || n == 0 {
		return engine.Outcome{Err: err}
	}
	if told&toldNotified == 0 && (ends && told&toldWaiting != 0 || len(c.Wake) > 0) {
		s.notifier.Notify()
	}
	out.Done, out.Other = true, told&toldOther != 0
	out.Untold = out.Other && c.Ahead != engine.Whole
	out.Waits = out.Untold && ends && told&toldWaiting != 0
	out.Seen.Version = told >> toldBits
	if out.Seen.Now = out.Seen.Version; told&toldEarly != 0 {
		out.Seen.Now, out.Err = s.clock(ctx)
	}
	return out
}

// exec runs a statement that changes rows. See database.change.
func (s *rowStore) exec(ctx context.Context, size int, stmt *statement, args []any) (n, id int64, err error) {
	return s.change(ctx, size, func() (result sql.Result, err error) {
		err = s.on(ctx, stmt, func(ctx context.Context, p *sql.Stmt) error {
			result, err = p.ExecContext(ctx, args...)
			return err
		})
		return result, err
	})
}

// on calls f with a statement: in the notifier's session if that is idle, so that a process that waits has one connection, and
// otherwise in the pool.
func (s *rowStore) on(ctx context.Context, stmt *statement, f func(context.Context, *sql.Stmt) error) error {
	err := s.notifier.use(ctx, stmt, func(ctx context.Context, _ *notifierSession, p *sql.Stmt) error { return f(ctx, p) })
	if errors.Is(err, errNoSession) {
		err = f(ctx, stmt.Stmt)
	}
	return err
}

// clock reads the server's clock.
func (s *rowStore) clock(ctx context.Context) (now int64, err error) {
	err = s.db.QueryRowContext(ctx, "SELECT "+clockSQL).Scan(&now)
	return now, err
}

// swapAll makes edits of several rows that stand ahead of anything, of those that are not locked. If it was not all, it reads
// the rows: what a renewal has written is its own.
func (s *rowStore) swapAll(ctx context.Context, changes []engine.Change) []engine.Outcome {
	list, names := make([]engine.Outcome, len(changes)), make([]string, len(changes))
	n, now, err := s.editAll(ctx, changes)
	var seen []engine.Seen
	if err == nil && n < len(list) {
		for i, c := range changes {
			names[i] = c.Name
		}
		seen, err = s.Read(ctx, names)
	}
	for i, c := range changes {
		switch out := &list[i]; {
		case err != nil:
			out.Err = err
		case seen == nil:
			*out = engine.Outcome{Done: true, Other: true, Untold: true, Seen: engine.Seen{Now: now}}
		default:
			done := strings.Contains(seen[i].Text, c.New) && seen[i].Version >= c.Floor
			*out = engine.Outcome{Done: done, Other: done, Seen: seen[i]}
		}
	}
	return list
}

// editAll returns how many edits were made, and when.
func (s *rowStore) editAll(ctx context.Context, changes []engine.Change) (n int, now int64, err error) {
	at := sizeFor(len(changes))
	args := make([]any, 0, 4*sizes[at]+2)
	size, before, floor := 0, changes[0].Before, int64(0)
	for i := range changes {
		c := &changes[i]
		args = append(args, keyOf(c.Name), c.Old, c.New, c.Until)
		size += 100 + len(c.Old) + len(c.New)
		before, floor = min(before, c.Before), max(floor, c.Floor)
	}
	for range sizes[at] - len(changes) {
		args = append(args, nil, "", "", 0)
	}
	twice, now, err := s.exec(ctx, size, s.edits[at], append(args, before, floor))
	return int(twice / 2), now, err
}

// Wake wakes all who follow the backend.
func (s *rowStore) Wake(context.Context, []engine.Wake) { s.notifier.Notify() }

// Names is in the order of keys.
func (s *rowStore) Names(ctx context.Context, prefix, after string, limit int) ([]string, error) {
	k := make([]byte, sha256.Size)
	if after != "" {
		k = keyOf(after)
	}
	rows, err := s.names.QueryContext(ctx, k, len(prefix), []byte(prefix), limit)
	if err != nil {
		return nil, err
	}
	return claims.ScanNames(rows)
}

func (s *rowStore) Listen(_ context.Context, w engine.Waiter, heard func(end string)) (stop func(), err error) {
	if !w.Queue {
		return nil, driver.ErrSkip
	}
	return s.notifier.Listen(w, heard)
}

// Assignments take effect one after the other, since sessionSQL says so. So a column is read before it is set.

const sqlWhole = `UPDATE {table} FORCE INDEX (PRIMARY) SET claims = {new}, until = :until, void = GREATEST(void, :void), version = LAST_INSERT_ID({told}) DIV {bits}
WHERE k = :key AND (version = :version OR :free AND until <= {now}) AND {now} >= :since AND {valid}`

const sqlAppend = `UPDATE {table} FORCE INDEX ({gate}) SET claims = CONCAT(claims, {new}), until = GREATEST(until, :until), version = LAST_INSERT_ID({told}) DIV {bits}
WHERE k = :key AND {ahead} AND {valid}`

const sqlEdit = `UPDATE {table} FORCE INDEX (PRIMARY) SET claims = REPLACE(claims, :old, {new}), until = GREATEST(until, :until), version = LAST_INSERT_ID({told}) DIV {bits}
WHERE k = :key AND INSTR(claims, :old) > 0 AND {ahead} AND {valid}`

// sqlEnd takes a line away.
const sqlEnd = `UPDATE {table} FORCE INDEX (PRIMARY) SET until = IF(claims = :old, 0, until), claims = REPLACE(claims, :old, ''),
version = LAST_INSERT_ID({told} + IF(INSTR(claims, ' p') > 0, {waits}, 0)) DIV {bits}
WHERE k = :key AND INSTR(claims, :old) > 0 AND {valid}`

// sqlEndNotifying is sqlEnd in the notifier's session. Once the row is locked, and before it is committed, it takes the user-level lock
// with the next number and releases the old one: a notified waiter's attempt waits for the row, and no longer.
var sqlEndNotifying = strings.Replace(sqlEnd, "{waits}", "{waits} + {notified} * (GET_LOCK(:taken, 0) + RELEASE_LOCK(:left) = 2)", 1)

const sqlInsert = `INSERT IGNORE INTO {table} (k, name, version, until, void, claims)
SELECT :key, :name, LAST_INSERT_ID({now} * {bits}) DIV {bits}, :until, :void, REPLACE(:new, CHAR(9), {now}) FROM (SELECT 1) one WHERE {now} < :before`

// sqlEdits makes edits of several rows. The INSERT only updates: its rows are there, and locked by what selects them, which leaves
// out those that others have locked. An UPDATE that joins them took the server twice as long. The clock comes through the insert id.
const sqlEdits = `INSERT INTO {table} (k, name, version, until, void, claims)
SELECT l.k, c.old, 0, c.later, 0, c.new FROM (SELECT CAST(? AS BINARY(32)) AS k, ? AS old, ? AS new, ? AS later{more}) c
STRAIGHT_JOIN {table} l FORCE INDEX (PRIMARY) ON l.k = c.k WHERE INSTR(l.claims, c.old) > 0 AND {now} < ? AND l.version < {max} FOR UPDATE {skip}
ON DUPLICATE KEY UPDATE claims = REPLACE({table}.claims, VALUES(name), VALUES(claims)), until = GREATEST({table}.until, VALUES(until)),
version = GREATEST({table}.version + 1, LAST_INSERT_ID({now}), ?)`

// sqlRead also selects the clock, which is needed even if no row is found.
const sqlRead = `SELECT {now}, l.k, COALESCE(l.version, 0), COALESCE(l.void, 0), l.claims FROM ` + writable + ` o LEFT JOIN {table} l ON l.k IN ({keys})`

// sqlNames is ordered by the key: names are longer than what the server sorts by.
const sqlNames = `SELECT name FROM {table} WHERE k > ? AND until > {now} AND LEFT(name, ?) = ? ORDER BY k LIMIT ?`

// aheads are conditions on what is ahead of a line.
func aheads(head string) map[engine.Ahead]string {
	var others []string
	for _, other := range engine.NotReaders {
		others = append(others, "INSTR("+head+", '\n"+other[1:]+"')")
	}
	return map[engine.Ahead]string{engine.Anything: "1", engine.Readers: strings.Join(others, " + ") + " = 0", engine.Nothing: head + " = ''"}
}

var parameter = regexp.MustCompile(`:[a-z]+`)

// prepareAll prepares all statements.
func (s *rowStore) prepareAll(ctx context.Context) error {
	var errs []error
	prepare := func(text, ahead string) *statement {
		stmt, err := s.statement(text, ahead), error(nil)
		if stmt.Stmt, err = s.db.PrepareContext(ctx, stmt.text); err == nil {
			s.all = append(s.all, stmt)
		}
		errs = append(errs, err)
		return stmt
	}
	s.swap = map[swapKind]*statement{{}: prepare(sqlWhole, "")}
	for ahead, condition := range aheads("claims") {
		s.swap[swapKind{ahead, true}] = prepare(sqlAppend, condition)
	}
	for ahead, condition := range aheads("LEFT(claims, INSTR(claims, :old) - 1)") {
		s.swap[swapKind{ahead, false}] = prepare(sqlEdit, condition)
	}
	s.end, s.notifier.release = prepare(sqlEnd, ""), s.statement(sqlEndNotifying, "")
	s.insert, s.names = prepare(sqlInsert, ""), prepare(sqlNames, "")
	for i, n := range sizes {
		s.read[i] = prepare(strings.Replace(sqlRead, "{keys}", strings.Repeat("?, ", n-1)+"?", 1), "")
		s.edits[i] = prepare(strings.Replace(sqlEdits, "{more}", strings.Repeat(" UNION ALL SELECT ?, ?, ?, ?", n-1), 1), "")
	}
	return errors.Join(errs...)
}

// statement fills in a text.
func (s *rowStore) statement(text, ahead string) *statement {
	for _, by := range []*strings.Replacer{
		strings.NewReplacer("{ahead}", ahead, "{new}", "REPLACE(:new, CHAR(9), {next})",
			"{told}", "{next} * {bits} + IF(version < {now}, 0, {early}) + (version <> :version)",
			"{valid}", "void < :stamp AND version < {max} AND {now} < :before"),
		strings.NewReplacer("{next}", "GREATEST(version + 1, {now})"),
		strings.NewReplacer("{table}", s.quoted(s.opts.Table), "{gate}", gate, "{now}", clockSQL, "{skip}", s.server.skipLocked(),
			"{bits}", strconv.Itoa(1<<toldBits), "{early}", strconv.Itoa(toldEarly), "{waits}", strconv.Itoa(toldWaiting), "{notified}", strconv.Itoa(toldNotified), "{max}", strconv.FormatInt(claims.MaxNumber, 10)),
	} {
		text = by.Replace(text)
	}
	return &statement{text: parameter.ReplaceAllString(text, "?"), params: parameter.FindAllString(text, -1)}
}
