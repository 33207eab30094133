package mysqllock

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/distlock/distlock/driver"
)

// tableSpec describes the table that a strategy needs. Its first column is its key.
type tableSpec struct {
	table   string // as Options.Table
	about   string // a comment in the DDL
	columns []columnSpec
	gate    bool // has the index gate
}

// gate is the index at which waiters wait for a row that another statement has locked. InnoDB moves the locks of a row whose
// size changes, and leaves an empty one behind for each that waits, which all others then look through: if they waited for the row
// itself, each change would be slower than the last. An entry of this index never changes. What takes a free lock and what
// releases one go straight to the row: that is shorter, and passes those that wait for a place.
const gate = "gate"

// columnSpec describes one column of a tableSpec.
type columnSpec struct{ name, ddl, note string }

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
	fmt.Fprintf(&b, "  PRIMARY KEY (%s)", t.key())
	if t.gate {
		fmt.Fprintf(&b, ",\n  UNIQUE KEY %s (%s)", gate, t.key())
	}
	b.WriteString("\n) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;\n")
	return b.String()
}

func (t tableSpec) key() string { return t.columns[0].name }

// columnInfo describes a column of a table in the database.
type columnInfo struct {
	kind   string // DATA_TYPE
	length int    // in bytes, for binary strings
	needed bool   // an INSERT has to name it
}

// tableInfo has the columns of a table by name.
type tableInfo map[string]columnInfo

// prepare creates the table if it is missing and Create is set, and refuses an unsuitable one.
func (d *database) prepare(ctx context.Context) error {
	columns, err := d.readColumns(ctx)
	if number(err) == errNoTable && d.opts.Create {
		if err := d.create(ctx); err != nil {
			return err
		}
		columns, err = d.readColumns(ctx)
	}
	if err != nil {
		return err // openError explains it
	}
	return d.checkShape(ctx, columns)
}

// create runs the DDL, which leaves an existing table alone.
func (d *database) create(ctx context.Context) error {
	_, err := d.db.ExecContext(ctx, d.spec.ddl())
	if n := number(err); n == errNoTableRight || n == errNoDBAccess {
		return fmt.Errorf("%w: mysqllock: the user may not create tables: GRANT CREATE, or have an administrator run what `distlock schema mysql --strategy %s --table %s` prints: %w",
			driver.ErrInvalid, d.opts.Strategy, d.opts.Table, err)
	}
	return err
}

// readColumns reads the table's columns. It first tries to read the table, so that a missing table and
// a missing right have errors of their own.
func (d *database) readColumns(ctx context.Context) (tableInfo, error) {
	if _, err := d.db.ExecContext(ctx, "SELECT 1 FROM "+quoted(d.opts.Table)+" WHERE 1 = 0"); err != nil {
		return nil, err
	}
	schema, table := split(d.opts.Table)
	rows, err := d.db.QueryContext(ctx, `SELECT LOWER(COLUMN_NAME), LOWER(DATA_TYPE), COALESCE(CHARACTER_MAXIMUM_LENGTH, 0),
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
		if err := rows.Scan(&name, &f.kind, &f.length, &f.needed); err != nil {
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

func (d *database) checkShape(ctx context.Context, columns tableInfo) error {
	for _, want := range d.spec.columns {
		if err := want.check(columns); err != nil {
			return d.mismatch(err)
		}
	}
	for name, f := range columns {
		known := slices.ContainsFunc(d.spec.columns, func(c columnSpec) bool { return c.name == name })
		if f.needed && !known {
			return d.mismatch(fmt.Errorf("column %s is of another program, and has no default: give it one", name))
		}
	}
	if err := d.checkEngine(ctx); err != nil {
		return err
	}
	return d.checkWrites(ctx)
}

// mismatch returns an error that says why the table is unsuitable.
func (d *database) mismatch(why error) error {
	return fmt.Errorf("%w: mysqllock: table %s: %w; `distlock schema mysql --strategy %s` prints what is wanted",
		driver.ErrInvalid, d.opts.Table, why, d.opts.Strategy)
}

func (c columnSpec) check(columns tableInfo) error {
	f, ok := columns[c.name]
	kind, size, _ := strings.Cut(strings.ToLower(strings.Fields(c.ddl)[0]), "(")
	types := fitting[kind]
	if types == nil {
		types = []string{kind}
	}
	length, _ := strconv.Atoi(strings.TrimSuffix(size, ")"))
	switch {
	case !ok:
		return fmt.Errorf("column %s is missing", c.name)
	case !slices.Contains(types, f.kind):
		return fmt.Errorf("column %s is %s: want %s", c.name, f.kind, strings.Join(types, " or "))
	case f.kind == "binary" && f.length != length:
		// It would pad a shorter value, which then is another one.
		return fmt.Errorf("column %s is binary(%d): want %s", c.name, f.length, c.ddl)
	case f.length < length:
		return fmt.Errorf("column %s has room for %d bytes: want %d at least", c.name, f.length, length)
	}
	return nil
}

// checkEngine requires InnoDB, the key as the PRIMARY KEY, and the gate.
func (d *database) checkEngine(ctx context.Context) error {
	schema, table := split(d.opts.Table)
	key := d.spec.key()
	var engine, indexes string
	err := d.db.QueryRowContext(ctx, `SELECT COALESCE(ENGINE, TABLE_TYPE), COALESCE((SELECT GROUP_CONCAT(LOWER(INDEX_NAME)) FROM (
SELECT INDEX_NAME FROM information_schema.STATISTICS WHERE TABLE_SCHEMA = COALESCE(NULLIF(?, ''), DATABASE()) AND TABLE_NAME = ? AND INDEX_NAME IN ('PRIMARY', ?)
GROUP BY INDEX_NAME HAVING COUNT(*) = 1 AND MIN(LOWER(COLUMN_NAME)) = ? AND MIN(SUB_PART) IS NULL AND MAX(NON_UNIQUE) = 0) k), '')
FROM information_schema.TABLES WHERE TABLE_SCHEMA = COALESCE(NULLIF(?, ''), DATABASE()) AND TABLE_NAME = ?`,
		schema, table, gate, key, schema, table).Scan(&engine, &indexes)
	whole := strings.Split(indexes, ",")
	switch {
	case err != nil:
		return err
	case !strings.EqualFold(engine, "InnoDB"):
		return d.mismatch(fmt.Errorf("its engine is %s: want InnoDB", engine))
	case !slices.Contains(whole, "primary"):
		return d.mismatch(fmt.Errorf("column %s is not the PRIMARY KEY by itself and in full", key))
	case d.spec.gate && !slices.Contains(whole, gate):
		return d.mismatch(fmt.Errorf("the unique index %s of column %s alone is missing: ALTER TABLE %s ADD UNIQUE KEY %s (%s)", gate, key, quoted(d.opts.Table), gate, key))
	}
	return nil
}

// checkWrites runs statements that change nothing, so that a missing right or a read-only server is
// reported at once and not at the first lock.
func (d *database) checkWrites(ctx context.Context) error {
	var names []string
	for _, c := range d.spec.columns {
		names = append(names, "`"+c.name+"`")
	}
	table, key, all := quoted(d.opts.Table), "`"+d.spec.key()+"`", strings.Join(names, ", ")
	texts := []string{
		"UPDATE " + table + " SET " + key + " = " + key + " WHERE " + key + " = '' AND 1 = 0",
		"INSERT INTO " + table + " (" + all + ") SELECT " + all + " FROM " + table + " WHERE 1 = 0",
	}
	for _, text := range texts {
		if _, err := d.db.ExecContext(ctx, text); err != nil {
			return err
		}
	}
	return nil
}
