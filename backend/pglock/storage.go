package pglock

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/distlock/distlock/driver"
)

// clock is the server's, in µs since 1970, at the arrival of the statement. If the statement has to
// wait for a row, it takes the lock for less time than requested, and treats a hold as alive for
// longer: never the other way round.
const clock = "(date_part('epoch', statement_timestamp()) * 1000000)::bigint"

// Schema returns the DDL of a strategy's table, which may be run repeatedly. It is empty if the options are
// invalid.
func Schema(opts Options) string {
	o, err := opts.complete()
	if err != nil {
		return ""
	}
	if o.Strategy == Advisory {
		return advisoryTable(o.Table).ddl()
	}
	return rowTable(o.Table).ddl()
}

// tableSpec is a table as a strategy needs it. The first column is its key.
type tableSpec struct {
	table   string
	columns []columnSpec
}

// columnSpec is a column of a tableSpec. Its kind is a type as format_type writes it.
type columnSpec struct {
	name, kind string
	null       bool   // it may be NULL
	note       string // a comment in the DDL
}

// rowTable is the table of strategy Row. No change touches the key, and each finds room in its
// page, so no index is written (a HOT update).
func rowTable(table string) *tableSpec {
	return &tableSpec{table: table, columns: []columnSpec{
		{name: "k", kind: "bytea", note: "SHA-256 of the name"},
		{name: "name", kind: "text"},
		{name: "version", kind: "bigint", note: "raised by every change; fences are 1024 times this"},
		{name: "until", kind: "bigint", note: "µs since 1970: no claim lasts then"},
		{name: "void", kind: "bigint", note: "changes with no greater stamp come too late"},
		{name: "claims", kind: "text", note: "a line for each holder, and each place in the queue"},
	}}
}

// advisoryTable keeps the numbers of grants. The locks themselves are in the server's memory only.
func advisoryTable(table string) *tableSpec {
	return &tableSpec{table: table, columns: []columnSpec{
		{name: "k", kind: "bytea", note: "SHA-256 of the table's and the lock's name"},
		{name: "name", kind: "text"},
		{name: "number", kind: "bigint", note: "of the last grant; its fence is 1024 times that"},
		{name: "owner", kind: "text", note: "of the last grant"},
	}}
}

// ddl returns the statement that makes the table if it is missing.
func (s *tableSpec) ddl() string {
	var b strings.Builder
	fmt.Fprintf(&b, "CREATE TABLE IF NOT EXISTS %s (\n", quote(s.table))
	for _, c := range s.columns {
		b.WriteString("\t" + c.ddl())
	}
	fmt.Fprintf(&b, "\tPRIMARY KEY (%s)\n) WITH (fillfactor = 50);\n", s.columns[0].name)
	return b.String()
}

func (c *columnSpec) ddl() string {
	def := fmt.Sprintf("%-8s%s", c.name, c.kind)
	if !c.null {
		def += " NOT NULL"
	}
	def += ","
	if c.note != "" {
		def = fmt.Sprintf("%-27s-- %s", def, c.note)
	}
	return def + "\n"
}

// tableInfo is a table as it was found. Its id is 0 if there is none.
type tableInfo struct {
	id      uint32
	path    string // schema and name
	quoted  string // the same as an identifier, which means the same whatever the search_path becomes
	kind    string // relkind and relpersistence of pg_class: "rp" for an ordinary table
	hidden  bool   // row level security hides rows from the user
	unique  string // columns that have a unique index of their own
	lacks   string // rights that the user lacks
	columns map[string]columnInfo
}

// columnInfo is a column of a tableInfo.
type columnInfo struct {
	Kind     string // as in columnSpec
	Required bool   // it has no default and may not be null
}

// ensureTable returns the table of a spec, and makes it if the options allow that. It returns an error
// if the table has another shape, or the user may not use it.
func (d *database) ensureTable(ctx context.Context, s *tableSpec) (*tableInfo, error) {
	t, err := d.findTable(ctx, s)
	if err == nil && t.id == 0 && d.opts.Create {
		t, err = d.createTable(ctx, s)
	}
	if err != nil {
		return nil, fmt.Errorf("pglock: table %s: %w", s.table, d.explainTable(err))
	}
	if err := t.check(s); err != nil {
		return nil, fmt.Errorf("%w: table %s %w", driver.ErrInvalid, s.table, err)
	}
	if t.lacks != "" {
		return nil, fmt.Errorf("%w: user %s may not use table %s: GRANT %s ON %s TO %s",
			driver.ErrInvalid, d.user, s.table, t.lacks, quote(s.table), d.user)
	}
	if d.opts.Name == "" {
		d.name += "?table=" + t.path
	}
	return &t, nil
}

// unquoted lets a statement name things as they are: the names are compared, also with those of other clients.
const unquoted = "set_config('quote_all_identifiers', 'off', true) <> ''"

const sqlTable = `SELECT c.oid, c.relnamespace::regnamespace::text || '.' || c.relname,
	c.relnamespace::regnamespace::text || '.' || quote_ident(c.relname), c.relkind::text || c.relpersistence::text, row_security_active(c.oid),
	coalesce((SELECT string_agg(a.attname, ' ') FROM pg_catalog.pg_index i
		JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum = i.indkey[0]
		WHERE i.indrelid = c.oid AND i.indisunique AND i.indisvalid AND i.indimmediate AND i.indpred IS NULL AND i.indnkeyatts = 1), ''),
	coalesce((SELECT string_agg(want, ', ') FROM unnest(ARRAY['SELECT', 'INSERT', 'UPDATE']) want
		WHERE NOT has_table_privilege(c.oid, want)), ''),
	coalesce((SELECT json_object_agg(a.attname, json_build_object('kind', format_type(a.atttypid, a.atttypmod),
		'required', a.attnotnull AND NOT a.atthasdef AND a.attidentity = ''))::text
		FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped), '{}')
	FROM pg_catalog.pg_class c WHERE c.oid = to_regclass(%s) AND ` + unquoted

// findTable looks the table up. Table names are words, so they need no escaping in a string.
func (d *database) findTable(ctx context.Context, s *tableSpec) (t tableInfo, err error) {
	var columns string
	err = d.queryRow(ctx, fmt.Sprintf(sqlTable, "'"+quote(s.table)+"'")).
		Scan(&t.id, &t.path, &t.quoted, &t.kind, &t.hidden, &t.unique, &t.lacks, &columns)
	if errors.Is(err, sql.ErrNoRows) {
		return t, nil
	}
	if err == nil {
		err = json.Unmarshal([]byte(columns), &t.columns)
	}
	return t, err
}

// createTable makes the table. If others do so at the same moment, PostgreSQL may report a duplicate in its
// catalogue.
func (d *database) createTable(ctx context.Context, s *tableSpec) (tableInfo, error) {
	_, err := d.db.ExecContext(ctx, s.ddl(), d.queryArgs()...)
	if c := sqlState(err); err != nil && c != duplicateTable && c != duplicateType && c != duplicateKey {
		return tableInfo{}, err
	}
	return d.findTable(ctx, s)
}

// check returns what is wrong with a table, in words that follow its name.
func (t *tableInfo) check(s *tableSpec) error {
	switch {
	case t.id == 0:
		return errors.New("does not exist: make it with what `distlock schema postgres` prints, or open with create=true")
	case t.kind == "ru" || t.kind == "rt":
		return errors.New("is temporary or UNLOGGED: it would lose locks; want an ordinary table")
	case t.kind != "rp":
		return errors.New("is no ordinary table, but a view, say, or partitioned")
	case t.hidden:
		return errors.New("has row level security, which hides locks from this user")
	}
	for _, c := range s.columns {
		if found, ok := t.columns[c.name]; !ok {
			return fmt.Errorf("has another shape: column %s is missing (want %s)", c.name, c.kind)
		} else if found.Kind != c.kind {
			return fmt.Errorf("has another shape: column %s is of type %s, want %s", c.name, found.Kind, c.kind)
		}
		delete(t.columns, c.name)
	}
	for name, c := range t.columns {
		if c.Required {
			return fmt.Errorf("has another shape: column %s is not distlock's, and has no default", name)
		}
	}
	if key := s.columns[0].name; !slices.Contains(strings.Fields(t.unique), key) {
		return fmt.Errorf("has another shape: column %s has no unique index of its own, such as PRIMARY KEY (%s)", key, key)
	}
	return nil
}

// channel returns the notification channel of all users of the table, by whatever name they know it.
func (t *tableInfo) channel() string {
	sum := sha256.Sum256([]byte(t.path))
	return "distlock_" + hex.EncodeToString(sum[:8])
}

// explainTable names the missing right if a table can't be seen or made.
func (d *database) explainTable(err error) error {
	switch sqlState(err) {
	case noRights:
		return fmt.Errorf("%w: user %s may not make it, or not use its schema: GRANT USAGE, CREATE ON SCHEMA … TO %s, or have an administrator run what `distlock schema postgres` prints, and GRANT SELECT, INSERT, UPDATE: %w",
			driver.ErrInvalid, d.user, d.user, err)
	case noSchema:
		return fmt.Errorf("%w: the schema does not exist: %w", driver.ErrInvalid, err)
	}
	return explainOpen(err)
}
