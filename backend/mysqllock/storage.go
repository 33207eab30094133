package mysqllock

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/distlock/distlock/driver"
)

// tableSpec describes a table that a strategy needs. Its first column is its key.
type tableSpec struct {
	table   string // as Options.Table
	about   string // a comment in the DDL
	columns []columnSpec
	deletes bool // rows are deleted
}

// columnSpec describes one column of a tableSpec. Columns of a user's own table may have other types.
type columnSpec struct {
	name, ddl, note string
	types           []string // any of them will do; nil: see fitting
	length          int      // at least, where types are given
	optional        bool
}

// fitting has the types that may replace those in DDL; all others must be the same.
var fitting = map[string][]string{
	"binary": {"binary", "varbinary"}, "tinyint": {"tinyint", "smallint", "int", "bigint"},
	"blob": {"blob", "mediumblob", "longblob"}, "mediumblob": {"mediumblob", "longblob"},
}

// ddl returns the statement that creates the table. Text is kept as bytes: sessions may have any
// character set.
func (t tableSpec) ddl() string {
	var b strings.Builder
	fmt.Fprintf(&b, "-- Locks of distlock: %s\n-- Times are µs since 1970.\nCREATE TABLE IF NOT EXISTS %s (\n", t.about, quoted(t.table))
	for _, c := range t.columns {
		line := fmt.Sprintf("  %-8s%s,", c.name, c.ddl)
		if c.note != "" {
			line = fmt.Sprintf("%-36s-- %s", line, c.note)
		}
		b.WriteString(line + "\n")
	}
	fmt.Fprintf(&b, "  PRIMARY KEY (%s)\n) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;\n", t.key())
	return b.String()
}

func (t tableSpec) key() string { return t.columns[0].name }

// columnInfo describes a column of a table in the database.
type columnInfo struct {
	kind      string // DATA_TYPE
	length    int    // in characters, or in bytes for binary strings
	collation string // empty: none, bytes are compared
	needed    bool   // an INSERT has to name it
}

// tableInfo has the columns of a table by name.
type tableInfo map[string]columnInfo

// The types of columns.
var (
	textTypes = []string{"varchar", "varbinary", "char", "binary"}
	longTypes = []string{"blob", "mediumblob", "longblob", "text", "mediumtext", "longtext", "varbinary", "varchar"}
)

// prepare creates the tables if they are missing and Create is set, and refuses unsuitable ones. It
// returns the columns of the first.
func (s *database) prepare(ctx context.Context) (tableInfo, error) {
	var first tableInfo
	for i, sh := range s.tables {
		columns, err := s.readColumns(ctx, sh)
		if number(err) == errNoTable && s.opts.Create {
			if err := s.create(ctx); err != nil {
				return nil, err
			}
			columns, err = s.readColumns(ctx, sh)
		}
		if err != nil {
			return nil, s.missing(sh, err)
		}
		if err := s.checkShape(ctx, sh, columns); err != nil {
			return nil, err
		}
		if i == 0 {
			first = columns
		}
	}
	return first, nil
}

// create runs the DDL, which leaves existing tables alone.
func (s *database) create(ctx context.Context) error {
	for _, t := range s.tables {
		_, err := s.db.ExecContext(ctx, t.ddl())
		switch n := number(err); {
		case n == errNoTableRight || n == errNoDBAccess:
			return fmt.Errorf("%w: mysqllock: the user may not create tables: GRANT CREATE, or have an administrator run what `distlock schema mysql --strategy %s --table %s` prints: %w",
				driver.ErrInvalid, s.opts.Strategy, s.opts.Table, err)
		case err != nil:
			return err
		}
	}
	return nil
}

// missing returns an error that names the missing table.
func (s *database) missing(sh tableSpec, err error) error {
	if number(err) != errNoTable {
		return err
	}
	return fmt.Errorf("%w: mysqllock: table %s is missing: %s: %w", driver.ErrInvalid, sh.table, remedy(s.opts), err)
}

// readColumns reads a table's columns. It first tries to read the table, so that a missing table and
// a missing right have errors of their own.
func (s *database) readColumns(ctx context.Context, sh tableSpec) (tableInfo, error) {
	if _, err := s.db.ExecContext(ctx, "SELECT 1 FROM "+quoted(sh.table)+" WHERE 1 = 0"); err != nil {
		return nil, err
	}
	schema, table := split(sh.table)
	rows, err := s.db.QueryContext(ctx, `SELECT LOWER(COLUMN_NAME), LOWER(DATA_TYPE), COALESCE(CHARACTER_MAXIMUM_LENGTH, 0), COALESCE(COLLATION_NAME, ''),
IS_NULLABLE = 'NO' AND COLUMN_DEFAULT IS NULL AND LOWER(EXTRA) NOT LIKE '%auto_increment%' AND LOWER(EXTRA) NOT LIKE '%generated%'
FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = COALESCE(NULLIF(?, ''), DATABASE()) AND TABLE_NAME = ?`, schema, table)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	return scanColumns(rows)
}

func scanColumns(rows *sql.Rows) (tableInfo, error) {
	columns := tableInfo{}
	for rows.Next() {
		var name string
		var f columnInfo
		if err := rows.Scan(&name, &f.kind, &f.length, &f.collation, &f.needed); err != nil {
			return nil, err
		}
		columns[name] = f
	}
	return columns, rows.Err()
}

// split separates the names of the database and the table.
func split(name string) (schema, table string) {
	schema, table, ok := strings.Cut(name, ".")
	if !ok {
		return "", name
	}
	return schema, table
}

func (s *database) checkShape(ctx context.Context, sh tableSpec, columns tableInfo) error {
	for _, want := range sh.columns {
		if err := want.check(columns); err != nil {
			return s.mismatch(sh, err)
		}
	}
	for name, f := range columns {
		known := slices.ContainsFunc(sh.columns, func(c columnSpec) bool { return c.name == name })
		if f.needed && !known {
			return s.mismatch(sh, fmt.Errorf("column %s is of another program, and has no default: give it one", name))
		}
	}
	if err := s.checkEngine(ctx, sh); err != nil {
		return err
	}
	return s.checkWrites(ctx, sh, columns)
}

// mismatch returns an error that says why a table is unsuitable.
func (s *database) mismatch(sh tableSpec, why error) error {
	return fmt.Errorf("%w: mysqllock: table %s: %w; `distlock schema mysql --strategy %s` prints what is wanted",
		driver.ErrInvalid, sh.table, why, s.opts.Strategy)
}

func (c columnSpec) check(columns tableInfo) error {
	f, ok := columns[c.name]
	types, length := c.types, c.length
	if types == nil {
		kind, size, _ := strings.Cut(strings.ToLower(strings.Fields(c.ddl)[0]), "(")
		if types = fitting[kind]; types == nil {
			types = []string{kind}
		}
		length, _ = strconv.Atoi(strings.TrimSuffix(size, ")"))
	}
	switch {
	case !ok && c.optional:
		return nil
	case !ok:
		return fmt.Errorf("column %s is missing", c.name)
	case !slices.Contains(types, f.kind):
		return fmt.Errorf("column %s is %s: want %s", c.name, f.kind, strings.Join(types, " or "))
	case (f.kind == "char" || f.kind == "binary") && f.length != length:
		// It would pad a shorter value, which then is another one.
		return fmt.Errorf("column %s is %s(%d), which has a fixed length: want %s", c.name, f.kind, f.length, strings.Join(types[:2], " or "))
	case f.length < length && !slices.Contains(longTypes[:6], f.kind):
		return fmt.Errorf("column %s has room for %d characters: want %d at least", c.name, f.length, length)
	}
	return nil
}

// checkEngine requires InnoDB and a key that makes names unique.
func (s *database) checkEngine(ctx context.Context, sh tableSpec) error {
	schema, table := split(sh.table)
	var engine string
	var keys int
	err := s.db.QueryRowContext(ctx, `SELECT COALESCE(ENGINE, TABLE_TYPE), (SELECT COUNT(*) FROM (
SELECT INDEX_NAME FROM information_schema.STATISTICS WHERE TABLE_SCHEMA = COALESCE(NULLIF(?, ''), DATABASE()) AND TABLE_NAME = ? AND NON_UNIQUE = 0
GROUP BY INDEX_NAME HAVING COUNT(*) = 1 AND MIN(LOWER(COLUMN_NAME)) = ? AND MIN(SUB_PART) IS NULL) k)
FROM information_schema.TABLES WHERE TABLE_SCHEMA = COALESCE(NULLIF(?, ''), DATABASE()) AND TABLE_NAME = ?`,
		schema, table, sh.key(), schema, table).Scan(&engine, &keys)
	switch {
	case err != nil:
		return err
	case !strings.EqualFold(engine, "InnoDB"):
		return s.mismatch(sh, fmt.Errorf("its engine is %s: want InnoDB", engine))
	case keys == 0:
		return s.mismatch(sh, fmt.Errorf("column %s is neither PRIMARY KEY nor UNIQUE by itself and in full", sh.key()))
	}
	return nil
}

// indexOf returns the index that makes the key column unique, for statements that must not lock
// other rows on their way.
func (s *database) indexOf(ctx context.Context, sh tableSpec) (quoted string, err error) {
	schema, table := split(sh.table)
	err = s.db.QueryRowContext(ctx, `SELECT CONCAT('`+"`', REPLACE(INDEX_NAME, '`', '``'), '`"+`') FROM information_schema.STATISTICS
WHERE TABLE_SCHEMA = COALESCE(NULLIF(?, ''), DATABASE()) AND TABLE_NAME = ? AND NON_UNIQUE = 0
GROUP BY INDEX_NAME HAVING COUNT(*) = 1 AND MIN(LOWER(COLUMN_NAME)) = ? AND MIN(SUB_PART) IS NULL
ORDER BY INDEX_NAME <> 'PRIMARY' LIMIT 1`, schema, table, sh.key()).Scan(&quoted)
	return quoted, err
}

// checkWrites runs statements that change nothing, so that a missing right or a read-only server is
// reported at once and not at the first lock.
func (s *database) checkWrites(ctx context.Context, sh tableSpec, columns tableInfo) error {
	var names []string
	for _, c := range sh.columns {
		if _, ok := columns[c.name]; ok {
			names = append(names, "`"+c.name+"`")
		}
	}
	table, key, all := quoted(sh.table), "`"+sh.key()+"`", strings.Join(names, ", ")
	texts := []string{
		"UPDATE " + table + " SET " + key + " = " + key + " WHERE " + key + " = '' AND 1 = 0",
		"INSERT INTO " + table + " (" + all + ") SELECT " + all + " FROM " + table + " WHERE 1 = 0",
	}
	if sh.deletes {
		texts = append(texts, "DELETE FROM "+table+" WHERE "+key+" = '' AND 1 = 0")
	}
	for _, text := range texts {
		if _, err := s.db.ExecContext(ctx, text); err != nil {
			return err
		}
	}
	return nil
}

// nameLength is the size of the name columns in our own tables: all that fits an index of InnoDB,
// with room for a second column.
const nameLength = 2048

var nameDDL = fmt.Sprintf("VARBINARY(%d) NOT NULL", nameLength)

// nameRules says which names a column can hold without changing them.
type nameRules struct {
	limit  int  // in bytes, or in characters
	text   bool // the limit is in characters
	padded bool // spaces at the end don't count
}

// newNameRules refuses a column in which two names could be equal, or one could become another.
func newNameRules(f columnInfo) (nameRules, error) {
	n := nameRules{limit: f.length, text: f.collation != ""}
	if !n.text {
		return n, nil
	}
	fix := fmt.Errorf("ALTER TABLE … MODIFY name VARBINARY(%d) NOT NULL makes names differ that differ", 4*f.length)
	switch c := strings.ToLower(f.collation); {
	case !strings.HasSuffix(c, "_bin"):
		return n, fmt.Errorf("column name has collation %s, in which names such as job and JOB can be equal: %w", f.collation, fix)
	case !strings.HasPrefix(c, "utf8mb4_"):
		return n, fmt.Errorf("column name has collation %s, whose character set lacks most characters: %w", f.collation, fix)
	default:
		n.padded = !strings.Contains(c, "nopad") && c != "utf8mb4_0900_bin"
	}
	return n, nil
}

// check refuses names that the column can't hold.
func (n nameRules) check(name string) error {
	length, unit := len(name), "bytes"
	if n.text {
		length, unit = utf8.RuneCountInString(name), "characters"
	}
	switch {
	case length > n.limit:
		return fmt.Errorf("%w: the name has %d %s, the table's column has room for %d", driver.ErrInvalid, length, unit, n.limit)
	case n.padded && strings.HasSuffix(name, " "):
		return fmt.Errorf("%w: the name ends with a space, which the table's column does not tell from none: want VARBINARY", driver.ErrInvalid)
	}
	return nil
}
