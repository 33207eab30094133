package paused

import (
	"context"
	"database/sql"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/distlock/distlock/fence/fencesql"
	"github.com/distlock/distlock/internal/testkit/testserver"
	_ "github.com/jackc/pgx/v5/stdlib"
)

// sqliteLocks returns the URL of a lock file for one test.
func sqliteLocks(t *testing.T) string { return "sqlite:" + filepath.Join(t.TempDir(), "locks.db") }

func startSQLite(t *testing.T) (lockURL, dataURL string) {
	return sqliteLocks(t), filepath.Join(t.TempDir(), "data.db")
}

// Locks and data are in one database, as in most programs that have one.

func startMariaDB(t *testing.T) (lockURL, dataURL string) {
	url := testserver.SharedMariaDB(t).Database(t)
	return url + "?create=true", url
}

func startPostgres(t *testing.T) (lockURL, dataURL string) {
	url := testserver.SharedPostgres(t).Database(t)
	return url + "&create=true", url
}

// protection says how a table is protected: by a guard's table or by a column of its own.
type protection bool

const (
	guardTable  protection = false
	fenceColumn protection = true
)

func openMySQL(p protection) func(string) (store, error) {
	return func(dataURL string) (store, error) {
		return openSQL(p, fencesql.MySQL, "mysql", testserver.MariaDBSource(dataURL))
	}
}

func openPostgres(p protection) func(string) (store, error) {
	return func(dataURL string) (store, error) { return openSQL(p, fencesql.Postgres, "pgx", dataURL) }
}

func openSQLite(p protection) func(string) (store, error) {
	return func(dataURL string) (store, error) {
		return openSQL(p, fencesql.SQLite, "sqlite", "file:"+dataURL+"?_pragma=busy_timeout(30000)&_pragma=journal_mode(wal)")
	}
}

// openSQL also creates missing tables.
func openSQL(p protection, d fencesql.Dialect, driver, source string) (store, error) {
	db, err := sql.Open(driver, source)
	if err != nil {
		return nil, err
	}
	insert := "INSERT IGNORE INTO stock (sku, n) VALUES (7, 0)"
	if d != fencesql.MySQL {
		insert = "INSERT INTO stock (sku, n) VALUES (7, 0) ON CONFLICT DO NOTHING"
	}
	if _, err := db.Exec("CREATE TABLE IF NOT EXISTS stock (sku INT PRIMARY KEY, n INT NOT NULL, fence BIGINT NOT NULL DEFAULT 0)"); err != nil {
		return nil, err
	}
	if _, err := db.Exec(insert); err != nil {
		return nil, err
	}
	if p == fenceColumn {
		c, err := fencesql.NewColumn(d, fencesql.Names{Table: "stock", Key: "sku", Fence: "fence"})
		return &columnStore{plainStore{db}, c, d}, err
	}
	g, err := fencesql.New(d, nil)
	if err != nil {
		return nil, err
	}
	return &guardStore{plainStore{db}, g}, g.Create(context.Background(), db)
}

// plainStore checks no fence.
type plainStore struct{ db *sql.DB }

func (s *plainStore) get(ctx context.Context, tx fencesql.Tx) (n int, err error) {
	return n, tx.QueryRowContext(ctx, "SELECT n FROM stock WHERE sku = 7").Scan(&n)
}

func (s *plainStore) set(ctx context.Context, tx fencesql.Tx, n int) error {
	_, err := tx.ExecContext(ctx, fmt.Sprintf("UPDATE stock SET n = %d WHERE sku = 7", n))
	return err
}

// guardStore has a guard's table. Each read and write enters it.
type guardStore struct {
	plainStore
	guard *fencesql.Guard
}

func (s *guardStore) read(ctx context.Context, f uint64) (n int, err error) {
	if f == 0 {
		return s.get(ctx, s.db)
	}
	failed := s.guard.Do(ctx, s.db, name, f, func(tx *sql.Tx) error {
		n, err = s.get(ctx, tx)
		return err
	})
	return n, failed
}

func (s *guardStore) write(ctx context.Context, n int, f uint64) error {
	if f == 0 {
		return s.set(ctx, s.db, n)
	}
	return s.guard.Do(ctx, s.db, name, f, func(tx *sql.Tx) error { return s.set(ctx, tx, n) })
}

// columnStore has the fence in the row. Each read enters it, and each write is a single statement.
type columnStore struct {
	plainStore
	column  *fencesql.Column
	dialect fencesql.Dialect
}

func (s *columnStore) read(ctx context.Context, f uint64) (n int, err error) {
	if f == 0 {
		return s.get(ctx, s.db)
	}
	failed := s.column.Do(ctx, s.db, 7, f, func(tx *sql.Tx) error {
		n, err = s.get(ctx, tx)
		return err
	})
	return n, failed
}

func (s *columnStore) write(ctx context.Context, n int, f uint64) error {
	if f == 0 {
		return s.set(ctx, s.db, n)
	}
	update := "UPDATE stock SET n = ?, fence = ? WHERE sku = ? AND fence <= ?"
	if s.dialect == fencesql.Postgres {
		update = "UPDATE stock SET n = $1, fence = $2 WHERE sku = $3 AND fence <= $4"
	}
	result, err := s.db.ExecContext(ctx, update, n, f, 7, f)
	if err != nil {
		return err
	}
	return s.column.Changed(ctx, s.db, result, 7, f)
}
