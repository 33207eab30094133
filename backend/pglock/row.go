package pglock

import (
	"context"
	"crypto/sha256"
	"database/sql"
	sqldriver "database/sql/driver"
	"encoding/hex"
	"errors"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/claims"
	"github.com/distlock/distlock/internal/engine"
	"github.com/distlock/distlock/internal/wait"
)

// newRow makes strategy Row.
func newRow(ctx context.Context, db *database) (*engine.Backend, error) {
	t, err := db.ensureTable(ctx, rowTable(db.opts.Table))
	if err != nil {
		return nil, err
	}
	s := &rowStore{database: db, sql: newRowStatements(t.quoted, t.channel(), db.bounds)}
	if db.pgx && !db.pooled() && db.limit != 1 { // one connection must be left for calls
		s.listener = newReleaseListener(db, t.channel())
	}
	return engine.New(s, engine.Options{Package: "pglock", Name: db.name}), nil
}

// rowStore implements engine's Store: a row for each name. Each change is one statement that commits by itself.
type rowStore struct {
	*database
	sql      *rowStatements
	listener *releaseListener // nil: waiters poll
}

func (s *rowStore) Read(ctx context.Context, names []string) ([]engine.Seen, error) {
	now, byKey, err := s.read(ctx, names)
	list := make([]engine.Seen, len(names))
	for i, name := range names {
		list[i] = byKey[hex.EncodeToString(keyOf(name))]
		list[i].Now = now
	}
	return list, err
}

func (s *rowStore) read(ctx context.Context, names []string) (now int64, byKey map[string]engine.Seen, err error) {
	err = s.scanAll(ctx, func() { byKey = map[string]engine.Seen{} }, func(rows *sql.Rows) error {
		var key sql.NullString
		var seen engine.Seen
		err := rows.Scan(&now, &key, &seen.Version, &seen.Void, &seen.Text)
		byKey[key.String] = seen
		return err
	}, s.sql.read, keyList(names))
	if err == nil && len(byKey) == 0 {
		err = errReplica
	}
	return now, byKey, err
}

// errReplica is returned if a replica answered.
var errReplica = errors.New("a replica has answered, which may not know the latest changes: the connections must be to the primary")

func (s *rowStore) Swap(ctx context.Context, changes []engine.Change) (list []engine.Outcome) {
	if len(changes) == 1 && !changes[0].Skip {
		list = []engine.Outcome{s.swap(ctx, &changes[0])}
	} else {
		list = s.swapAll(ctx, changes)
	}
	var missed []string
	for i, out := range list {
		if !out.Done && out.Err == nil {
			missed = append(missed, changes[i].Name)
		}
	}
	if len(missed) == 0 {
		return list
	}
	seen, err := s.Read(ctx, missed)
	for i, out := range list {
		if !out.Done && out.Err == nil {
			list[i].Seen, list[i].Err = seen[0], driver.Unsent(err) // it was not made
			seen = seen[1:]
		}
	}
	return list
}

// swap makes one change. What is there instead is not read.
func (s *rowStore) swap(ctx context.Context, c *engine.Change) (out engine.Outcome) {
	kind := swapKind{ahead: c.Ahead, lazy: c.Lazy, wakes: len(c.Wake) > 0}
	args := []any{keyOf(c.Name), c.Version, c.New, c.Before, c.Until, c.Stamp, c.Floor, c.Void, c.Free}
	switch {
	case c.Ahead != engine.Whole:
		kind.adds, args[1], args = c.Old == "", c.Old, args[:7]
	case c.Version == 0:
		kind.adds, args = true, append(args, c.Name)
	}
	run := func(args ...any) {
		var told string
		if out.Done, out.Err = s.scanOne(ctx, s.sql.swap[kind], &told, args...); out.Done {
			out.Seen = told3(told)
		}
	}
	if !kind.wakes {
		run(args...)
	} else if run(append(args, payloads(c.Wake))...); sqlState(out.Err) == queueFull { // nothing was done, and waiters come late
		kind.wakes = false
		run(args...)
	}
	out.Other = out.Done && c.Ahead != engine.Whole
	return out
}

// told3 reads a version, the clock and a text. One column costs a client much less than three.
func told3(text string) (seen engine.Seen) {
	version, rest, _ := strings.Cut(text, " ")
	now, text, _ := strings.Cut(rest, " ")
	seen.Version, _ = strconv.ParseInt(version, 10, 64)
	seen.Now, _ = strconv.ParseInt(now, 10, 64)
	seen.Text = text
	return seen
}

// swapAll makes edits of several rows that stand ahead of anything.
func (s *rowStore) swapAll(ctx context.Context, changes []engine.Change) []engine.Outcome {
	list := make([]engine.Outcome, len(changes))
	names, texts := make([]string, len(changes)), make([][]string, 6)
	for i, c := range changes {
		names[i] = c.Name
		for j, text := range []string{c.Old, c.New, decimal(c.Before), decimal(c.Until), decimal(c.Floor), decimal(c.Version)} {
			texts[j] = append(texts[j], text)
		}
	}
	args := []any{keyList(names)}
	for _, column := range texts {
		args = append(args, textList(column))
	}
	var told string
	if _, err := s.scanOne(ctx, s.sql.edits, &told, args...); err != nil {
		return slices.Repeat([]engine.Outcome{{Err: err}}, len(list))
	}
	now := told3(told)
	for _, one := range strings.Split(now.Text, ",") {
		n, rest, done := strings.Cut(one, " ")
		if i, err := strconv.Atoi(n); done && err == nil {
			list[i-1] = engine.Outcome{Done: true, Seen: told3(rest)}
			list[i-1].Other, list[i-1].Seen.Now = list[i-1].Seen.Now != 0, now.Now
		}
	}
	return list
}

func decimal(n int64) string { return strconv.FormatInt(n, 10) }

// payloads name waiters' connections and the ends of their Owners: everyone who may log in can listen, and a whole Owner would
// be enough to release its hold.
func payloads(list []engine.Wake) string {
	texts := make([]string, len(list))
	for i, w := range list {
		texts[i] = w.Address + " " + engine.EndOf(w.Owner)
	}
	return textList(texts)
}

func (s *rowStore) Wake(ctx context.Context, list []engine.Wake) {
	_, _ = s.scanOne(ctx, s.sql.wake, new(any), payloads(list))
}

func (s *rowStore) Names(ctx context.Context, prefix, after string, limit int) (names []string, err error) {
	err = s.scanAll(ctx, func() { names = nil }, func(rows *sql.Rows) error {
		var name string
		err := rows.Scan(&name)
		names = append(names, name)
		return err
	}, s.sql.names, []byte(prefix), []byte(after), int64(limit))
	return names, err
}

func (s *rowStore) Listen(ctx context.Context, w engine.Waiter, heard func(end string)) (stop func(), err error) {
	if s.listener == nil || !w.Queue {
		return nil, driver.ErrSkip
	}
	return s.listener.listen(ctx, w.Address, heard)
}

func (s *rowStore) Close() error {
	if s.listener != nil {
		s.listener.close()
	}
	return nil
}

// querier is a pool of connections, or one.
type querier interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// run runs a statement on the connection that listens if that is free, or if the server lets in no other, and otherwise on one of
// the pool. It is tried again if it was not made.
func (s *rowStore) run(ctx context.Context, statement func(querier) error) error {
	return retry(ctx, func() error {
		err := s.runLent(ctx, false, statement)
		if err == errNotLent {
			err = statement(s.db)
		}
		if sqlState(err) == tooMany {
			if e := s.runLent(ctx, true, statement); e != errNotLent {
				return e
			}
		}
		return err
	})
}

// errNotLent is returned for a statement that had no connection that listens.
var errNotLent = errors.New("no connection is lent")

func (s *rowStore) runLent(ctx context.Context, wait bool, statement func(querier) error) error {
	if s.listener == nil {
		return errNotLent
	}
	conn := s.listener.lender.borrow(ctx, wait)
	if conn == nil {
		return errNotLent
	}
	defer s.listener.lender.giveBack()
	err := statement(conn)
	if errors.Is(err, sqldriver.ErrBadConn) { // nothing was sent
		return errNotLent
	}
	return err
}

// scanOne runs a statement that returns one value or none: false.
func (s *rowStore) scanOne(ctx context.Context, query string, into any, args ...any) (found bool, err error) {
	err = s.run(ctx, func(db querier) error {
		err := db.QueryRowContext(ctx, query, append(s.queryArgs(), args...)...).Scan(into)
		if found = err == nil; err == sql.ErrNoRows {
			return nil
		}
		return err
	})
	return found && err == nil, err
}

// scanAll runs a query and scans its rows. begin comes before the first one of each try.
func (s *rowStore) scanAll(ctx context.Context, begin func(), scan func(*sql.Rows) error, query string, args ...any) error {
	return s.run(ctx, func(db querier) error {
		rows, err := db.QueryContext(ctx, query, append(s.queryArgs(), args...)...)
		if err != nil {
			return err
		}
		defer rows.Close()
		for begin(); rows.Next(); {
			if err := scan(rows); err != nil {
				return err
			}
		}
		return rows.Err()
	})
}

// maxTries bounds how often an aborted statement is tried.
const maxTries = 20

// retry repeats a statement while PostgreSQL aborts it because of others.
func retry(ctx context.Context, statement func() error) (err error) {
	for n := range maxTries {
		if err = statement(); err == nil {
			return nil
		} else if !aborted(err) {
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

// keyOf returns the primary key of a name's row as a parameter.
func keyOf(name string) []byte {
	k := sha256.Sum256([]byte(name))
	return k[:]
}

// keyList returns an array of keys in PostgreSQL's notation, which any driver can send.
func keyList(names []string) string {
	b := make([]byte, 0, 80*len(names)+2)
	b = append(b, '{')
	for i, name := range names {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(hex.AppendEncode(append(b, `"\\x`...), keyOf(name)), '"')
	}
	return string(append(b, '}'))
}

var escapeInList = strings.NewReplacer(`\`, `\\`, `"`, `\"`)

// textList is keyList for texts.
func textList(texts []string) string {
	var b strings.Builder
	b.Grow(len(texts)*(len(strings.Join(texts[:min(1, len(texts))], ""))+8) + 2)
	for i, text := range texts {
		if b.WriteString([]string{`{"`, `,"`}[min(i, 1)]); strings.ContainsAny(text, `\"`) {
			text = escapeInList.Replace(text)
		}
		b.WriteString(text)
		b.WriteByte('"')
	}
	b.WriteByte('}')
	return b.String()
}

// rowStatements are the statements for one table. Parameters have casts, so that they mean the same however a driver sends them.
type rowStatements struct {
	swap                     map[swapKind]string
	edits, read, names, wake string
}

// swapKind is what tells one statement of a change from another.
type swapKind struct {
	ahead       engine.Ahead
	adds        bool // a row, or a line
	lazy, wakes bool
}

// bounded lets a statement wait for a locked row no longer than a second, since it occupies a connection. The setting ends with the
// statement, which is a transaction of its own. Where all connections have it anyway, it is left out.
const bounded = "set_config('lock_timeout', '1s', true) <> ''"

// unflushed lets a statement commit without waiting for the disk, or for standbys. It is for what a crash may take back: a release,
// whose lock then ends with its TTL, and a place in the queue. A grant is flushed, and with it all that came before.
// Each change raises the version to the clock at least: a version that a crash took back must not return, or who has read it would
// write over what it has not read.
const unflushed = "set_config('synchronous_commit', 'off', true) <> ''"

// notify wakes waiters. To prepare a notification takes the server as long as all the rest.
const notify = `(SELECT count(pg_notify('{channel}_' || split_part(w, ' ', 1), split_part(w, ' ', 2))) FROM unnest({wake}::text::text[]) w)`

// wholeText replaces the text of a row.
const wholeText = `version = {next}, claims = {new}, until = $5::bigint, void = greatest(t.void, $8::bigint)
	WHERE (t.version = $2::bigint OR $9::boolean AND t.until <= {now}) AND {valid}`

// insertText makes a row, or replaces a text in which nothing lasts.
const insertText = `INSERT INTO {t} AS t (k, name, version, until, void, claims)
	SELECT $1::bytea, $10::text, n, $5::bigint, $8::bigint, replace($3::text, E'\t', n::text) FROM (SELECT greatest({now}, $7::bigint) AS n) s
	WHERE ($4::bigint = 0 OR {now} < $4::bigint) AND {bounded} ON CONFLICT (k) DO UPDATE SET ` + wholeText

// appendText adds a line.
const appendText = `UPDATE {t} t SET version = {next}, claims = t.claims || {new}, until = greatest(t.until, $5::bigint)
	WHERE t.k = $1::bytea AND $2::text = '' AND {ahead} AND {valid}`

// editText replaces a line.
const editText = `UPDATE {t} t SET version = {next}, claims = CASE WHEN $3::text = '' THEN replace(t.claims, $2::text, '') ELSE replace(t.claims, $2::text, {new}) END,
	until = CASE WHEN $3::text = '' AND t.claims = $2::text THEN 0 ELSE greatest(t.until, $5::bigint) END
	WHERE t.k = $1::bytea AND strpos(t.claims, $2::text) > 0 AND {ahead} AND {valid}`

// editsText replaces a line in each of several rows that are not locked.
const editsText = `WITH done AS (UPDATE {t} t SET version = greatest(t.version + 1, {now}, c.floor), claims = replace(t.claims, c.old, c.new), until = greatest(t.until, c.until)
	FROM (SELECT l.k, c.n, l.version <> c.version AS other, c.old, c.new, c.until, c.floor FROM {t} l JOIN unnest($1::text::bytea[], $2::text::text[], $3::text::text[],
	$4::text::bigint[], $5::text::bigint[], $6::text::bigint[], $7::text::bigint[]) WITH ORDINALITY c(k, old, new, before, until, floor, version, n) ON l.k = c.k
	WHERE strpos(l.claims, c.old) > 0 AND {now} < c.before FOR NO KEY UPDATE OF l SKIP LOCKED) c
	WHERE t.k = c.k RETURNING c.n, t.version, c.other)
	SELECT '0 ' || {now} || ' ' || coalesce(string_agg(n || ' ' || version || ' ' || other::integer, ','), '') FROM done`

// aheads are conditions on what is ahead of a line.
func aheads(head string) map[engine.Ahead]string {
	var others []string
	for _, other := range engine.NotReaders {
		others = append(others, "strpos("+head+", E'\\n"+other[1:]+"')")
	}
	return map[engine.Ahead]string{engine.Anything: "true", engine.Readers: strings.Join(others, " + ") + " = 0", engine.Nothing: head + " = ''"}
}

// newRowStatements fills in the table, an identifier, and the channel, a word.
func newRowStatements(table, channel string, bounds bool) *rowStatements {
	limit := bounded
	if bounds {
		limit = "true"
	}
	fill := func(sql, ahead, wake string) string {
		for _, by := range []*strings.Replacer{
			strings.NewReplacer("{ahead}", ahead, "{new}", `replace($3::text, E'\t', {next}::text)`,
				"{valid}", "($6::bigint = 0 OR t.void < $6::bigint) AND t.version < {max} AND ($4::bigint = 0 OR {now} < $4::bigint) AND "+limit),
			strings.NewReplacer("{next}", "greatest(t.version + 1, {now}, $7::bigint)"),
			strings.NewReplacer("{t}", table, "{now}", clock, "{max}", decimal(claims.MaxNumber), "{channel}", channel, "{lazy}", unflushed, "{bounded}", limit, "{wake}", wake),
		} {
			sql = by.Replace(sql)
		}
		return sql
	}
	s := &rowStatements{
		swap:  map[swapKind]string{},
		edits: fill(editsText, "", ""),
		read: fill(`SELECT n.now, encode(t.k, 'hex'), coalesce(t.version, 0), coalesce(t.void, 0), coalesce(t.claims, '')
	FROM (SELECT {now} AS now WHERE NOT pg_is_in_recovery()) n LEFT JOIN {t} t ON t.k = ANY ($1::text::bytea[])`, "", ""),
		names: fill(`SELECT name FROM {t} WHERE until > {now}
	AND convert_to(name, 'UTF8') >= $1::bytea AND convert_to(name, 'UTF8') > $2::bytea ORDER BY convert_to(name, 'UTF8') LIMIT $3::integer`, "", ""),
		wake: fill("SELECT "+notify, "", "$1"),
	}
	add := func(k swapKind, text, ahead, wake string) {
		for _, k.lazy = range []bool{false, true} {
			for _, k.wakes = range []bool{false, true} {
				sql, told := text, "''"
				if k.lazy {
					sql += " AND {lazy}"
				}
				if k.ahead != engine.Whole {
					told = "t.claims"
				}
				sql += " RETURNING t.version || ' ' || {now} || ' ' || " + told
				if k.wakes {
					sql += " || left(" + notify + "::text, 0)"
				}
				s.swap[k] = fill(sql, ahead, wake)
			}
		}
	}
	add(swapKind{}, "UPDATE {t} t SET "+wholeText+" AND t.k = $1::bytea", "", "$10")
	add(swapKind{adds: true}, insertText, "", "$11")
	for ahead, condition := range aheads("t.claims") {
		add(swapKind{ahead: ahead, adds: true}, appendText, condition, "$8")
	}
	for ahead, condition := range aheads("left(t.claims, strpos(t.claims, $2::text) - 1)") {
		add(swapKind{ahead: ahead}, editText, condition, "$8")
	}
	return s
}
