package pglock

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/distlock/distlock/driver"
)

// ensureTable makes sure that there is a table as r wants it, which the user may use.
func (s *database) ensureTable(ctx context.Context, r *tableSpec) (*tableInfo, error) {
	t, err := s.findTable(ctx, r)
	if err == nil && t.id == 0 && s.opts.Create {
		t, err = s.createTable(ctx, r)
	}
	if err != nil {
		return nil, fmt.Errorf("pglock: table %s: %w", r.table, s.explainTable(err))
	}
	if err := t.check(r); err != nil {
		return nil, fmt.Errorf("%w: table %s %w", driver.ErrInvalid, r.table, err)
	}
	if t.lacks != "" {
		return nil, fmt.Errorf("%w: user %s may not use table %s: GRANT %s ON %s TO %s",
			driver.ErrInvalid, s.user, r.table, t.lacks, quote(r.table), s.user)
	}
	if s.opts.Name == "" {
		s.name += "?table=" + t.path
	}
	return &t, nil
}

// tableInfo is a table as it is there; one without an id isn't.
type tableInfo struct {
	id      uint32
	path    string // schema and name
	kind    string // relkind and relpersistence of pg_class: "rp" is what we want
	hidden  bool   // row level security hides rows from the user
	unique  string // columns that have a unique index of their own
	lacks   string // rights that the user hasn't
	columns map[string]string
	demands []string // columns that have no default and may not be null
}

const sqlFind = `SELECT c.oid, c.relnamespace::regnamespace::text || '.' || c.relname, c.relkind::text || c.relpersistence::text, row_security_active(c.oid),
	coalesce((SELECT string_agg(a.attname, ' ') FROM pg_catalog.pg_index i
		JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum = i.indkey[0]
		WHERE i.indrelid = c.oid AND i.indisunique AND i.indisvalid AND i.indimmediate AND i.indpred IS NULL AND i.indnkeyatts = 1), ''),
	coalesce((SELECT string_agg(want, ', ') FROM unnest(ARRAY['SELECT', 'INSERT', 'UPDATE']) want
		WHERE NOT has_table_privilege(c.oid, want)), '')
	FROM pg_catalog.pg_class c WHERE c.oid = to_regclass(%s)`

const sqlColumns = `SELECT a.attname, format_type(a.atttypid, a.atttypmod),
	a.attnotnull AND NOT a.atthasdef AND a.attidentity = ''
	FROM pg_catalog.pg_attribute a WHERE a.attrelid = to_regclass(%s) AND a.attnum > 0 AND NOT a.attisdropped`

// findTable finds out what there is. Names of tables are words, so they may stand in a string.
func (s *database) findTable(ctx context.Context, r *tableSpec) (tableInfo, error) {
	t := tableInfo{columns: map[string]string{}}
	regclass := "'" + quote(r.table) + "'"
	row := s.queryRow(ctx, fmt.Sprintf(sqlFind, regclass))
	err := row.Scan(&t.id, &t.path, &t.kind, &t.hidden, &t.unique, &t.lacks)
	if errors.Is(err, sql.ErrNoRows) {
		return t, nil
	}
	if err != nil {
		return t, err
	}
	rows, err := s.query(ctx, fmt.Sprintf(sqlColumns, regclass))
	if err != nil {
		return t, err
	}
	defer rows.Close()
	for rows.Next() {
		var name, kind string
		var demanded bool
		if err := rows.Scan(&name, &kind, &demanded); err != nil {
			return t, err
		}
		t.columns[name] = kind
		if demanded {
			t.demands = append(t.demands, name)
		}
	}
	return t, rows.Err()
}

// createTable makes the table. Others may do so at the same moment: then PostgreSQL may find
// a name in its catalogue that wasn't there when it looked.
func (s *database) createTable(ctx context.Context, r *tableSpec) (tableInfo, error) {
	_, err := s.db.ExecContext(ctx, r.ddl(), s.queryArgs()...)
	if c := sqlState(err); err != nil && c != duplicateTable && c != duplicateType && c != duplicateKey {
		return tableInfo{}, err
	}
	return s.findTable(ctx, r)
}

// check says what is wrong with a table, in words that follow its name.
func (t *tableInfo) check(r *tableSpec) error {
	switch {
	case t.id == 0:
		return errors.New("does not exist: make it with what `distlock schema postgres` prints, or open with create=true")
	case t.kind == "ru" || t.kind == "rt":
		return errors.New("is temporary or UNLOGGED: it would forget who holds; want an ordinary table")
	case t.kind != "rp":
		return errors.New("is no ordinary table, but a view, say, or partitioned")
	case t.hidden:
		return errors.New("has row level security, which hides locks from this user")
	}
	for _, c := range r.columns {
		if kind, ok := t.columns[c.name]; !ok {
			return fmt.Errorf("has another shape: column %s is missing (want %s)", c.name, c.kind)
		} else if kind != c.kind {
			return fmt.Errorf("has another shape: column %s is of type %s, want %s", c.name, kind, c.kind)
		}
		t.demands = slices.DeleteFunc(t.demands, func(name string) bool { return name == c.name })
	}
	if len(t.demands) > 0 {
		return fmt.Errorf("has another shape: column %s is not distlock's, and has no default", t.demands[0])
	}
	if key := r.columns[0].name; !slices.Contains(strings.Fields(t.unique), key) {
		return fmt.Errorf("has another shape: column %s has no unique index of its own, such as PRIMARY KEY (%s)", key, key)
	}
	return nil
}

// channel is what those notify and listen to who use the table, by whatever name.
func (t *tableInfo) channel() string {
	sum := sha256.Sum256([]byte(t.path))
	return "distlock_" + hex.EncodeToString(sum[:8])
}

// explainTable says which right is missing where a table can't be seen or made.
func (s *database) explainTable(err error) error {
	switch sqlState(err) {
	case noRights:
		return fmt.Errorf("%w: user %s may not make it, or not use its schema: GRANT USAGE, CREATE ON SCHEMA … TO %s, or have an administrator run what `distlock schema postgres` prints, and GRANT SELECT, INSERT, UPDATE: %w",
			driver.ErrInvalid, s.user, s.user, err)
	case noSchema:
		return fmt.Errorf("%w: the schema does not exist: %w", driver.ErrInvalid, err)
	}
	return explain(err)
}
