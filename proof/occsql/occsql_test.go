package occsql_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
	"github.com/distlock/distlock/occ"
	"github.com/distlock/distlock/occ/occsql"
	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgconn"
	_ "github.com/jackc/pgx/v5/stdlib"
	_ "modernc.org/sqlite"
)

func TestMain(m *testing.M) { os.Exit(testserver.Run(m)) }

// shop is a new database for one test, with 0 apples and 5 pears in stock.
type shop struct {
	dialect occsql.Dialect
	db      *sql.DB
	stock   *occsql.Column[int]
}

var names = occsql.Names{Table: "stock", Key: "sku", Value: "quantity", Version: "version"}

// each runs a test on each database.
func each(t *testing.T, test func(t *testing.T, s shop)) {
	t.Run("mariadb", func(t *testing.T) {
		test(t, open(t, occsql.MySQL, "mysql", testserver.MariaDBSource(testserver.SharedMariaDB(t).Database(t))))
	})
	t.Run("postgres", func(t *testing.T) {
		test(t, open(t, occsql.Postgres, "pgx", testserver.SharedPostgres(t).Database(t)))
	})
	t.Run("sqlite", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "shop.db")
		test(t, open(t, occsql.SQLite, "sqlite", "file:"+file+"?_pragma=busy_timeout(60000)&_pragma=journal_mode(wal)&_pragma=synchronous(off)"))
	})
}

func open(t *testing.T, d occsql.Dialect, driver, source string) shop {
	t.Helper()
	db := must.Get(sql.Open(driver, source))(t)
	t.Cleanup(func() { db.Close() })
	for _, statement := range []string{
		"CREATE TABLE stock (sku VARCHAR(50) PRIMARY KEY, quantity INT NOT NULL, version BIGINT NOT NULL DEFAULT 0)",
		"INSERT INTO stock (sku, quantity) VALUES ('apple', 0), ('pear', 5)",
	} {
		must.Get(db.ExecContext(t.Context(), statement))(t)
	}
	stock := must.Get(occsql.NewColumn[int](d, names))(t)
	return shop{d, db, stock}
}

func (s shop) quantity(t *testing.T, sku string) (n int) {
	t.Helper()
	must.OK(t, s.db.QueryRowContext(t.Context(), "SELECT quantity FROM stock WHERE sku = '"+sku+"'").Scan(&n))
	return n
}

func one(n int) (int, error) { return n + 1, nil }

// Sixteen goroutines increment one counter without losing an increment.
func TestNothingIsLost(t *testing.T) {
	each(t, func(t *testing.T, s shop) {
		s.db.SetMaxOpenConns(16)
		var conflicts atomic.Int64
		var wg sync.WaitGroup
		for range 16 {
			wg.Go(func() {
				for range 10 {
					_, err := s.stock.Update(t.Context(), s.db, "apple", one,
						occ.Attempts(10_000), occ.OnConflict(func(int) { conflicts.Add(1) }))
					if err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
		t.Logf("160 updates by 16, %d retries", conflicts.Load())
		if n := s.quantity(t, "apple"); n != 160 {
			t.Errorf("%d of 160 were counted", n)
		}
	})
}

// Another client writes once between read and write, also the same value.
func TestOneConflict(t *testing.T) {
	each(t, func(t *testing.T, s shop) {
		calls, conflicts := 0, 0
		n, err := s.stock.Update(t.Context(), s.db, "pear", func(n int) (int, error) {
			if calls++; calls == 1 {
				expect.OK(t, expect.Err(s.stock.Update(t.Context(), s.db, "pear", func(n int) (int, error) { return n, nil })))
			}
			return n + 1, nil
		}, occ.OnConflict(func(int) { conflicts++ }))
		if err != nil || n != 6 || calls != 2 || conflicts != 1 || s.quantity(t, "pear") != 6 {
			t.Errorf("%d, %v after %d calls and %d conflicts", n, err, calls, conflicts)
		}
	})
}

// An unchanged value counts as stored. MySQL reports that no row changed, unless the same statement
// raises the version.
func TestTheSameValueIsStored(t *testing.T) {
	each(t, func(t *testing.T, s shop) {
		same := func(n int) (int, error) { return n, nil }
		if n, err := s.stock.Update(t.Context(), s.db, "pear", same, occ.Attempts(1)); err != nil || n != 5 {
			t.Errorf("%d, %v", n, err)
		}
	})
}

// The database's error is returned, with the row's name.
func TestErrors(t *testing.T) {
	each(t, func(t *testing.T, s shop) {
		_, err := s.stock.Update(t.Context(), s.db, "plum", one)
		if !errors.Is(err, sql.ErrNoRows) || !strings.Contains(err.Error(), "stock plum") {
			t.Errorf("a row that is not there: %v", err)
		}
		soldOut := errors.New("sold out")
		_, err = s.stock.Update(t.Context(), s.db, "apple", func(n int) (int, error) { return n - 1, soldOut })
		if err != soldOut || s.quantity(t, "apple") != 0 {
			t.Errorf("an error of change: %v", err)
		}
		if stored, err := occsql.Stored(s.db.ExecContext(t.Context(), "UPDATE stock SET version = version + 1")); err == nil || stored {
			t.Errorf("two rows: %v, %v", stored, err)
		}
		if stored, err := occsql.Stored(s.db.ExecContext(t.Context(), "UPDATE nowhere SET version = version + 1")); err == nil || stored {
			t.Errorf("no table: %v, %v", stored, err)
		}
	})
}

// PostgreSQL refuses the write with an error if transactions are REPEATABLE READ by default.
func TestSerializationFailure(t *testing.T) {
	stored, err := occsql.Stored(nil, &pgconn.PgError{Code: "40001"})
	if stored || err != nil {
		t.Errorf("%v, %v: want a conflict", stored, err)
	}
	s := open(t, occsql.Postgres, "pgx", testserver.SharedPostgres(t).Database(t)+"&default_transaction_isolation=serializable")
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			expect.OK(t, expect.Err(s.stock.Update(t.Context(), s.db, "apple", one, occ.Attempts(10_000))))
		})
	}
	wg.Wait()
	if n := s.quantity(t, "apple"); n != 8 {
		t.Errorf("%d of 8 were counted", n)
	}
}

// After a deadlock MySQL has rolled the statement back. A conflict between the nodes of a Galera
// cluster has the same error.
func TestDeadlockIsAConflict(t *testing.T) {
	err := fmt.Errorf("wrapped: %w", &mysql.MySQLError{Number: 1213, SQLState: [5]byte([]byte("40001")), Message: "Deadlock found"})
	if stored, err := occsql.Stored(nil, err); stored || err != nil {
		t.Errorf("%v, %v: want a conflict", stored, err)
	}
	if _, err := occsql.Stored(nil, &mysql.MySQLError{Number: 1205, SQLState: [5]byte([]byte("HY000"))}); err == nil {
		t.Error("a lock wait that timed out: want an error")
	}
}

func TestNewColumnRefuses(t *testing.T) {
	for says, c := range map[string]struct {
		occsql.Dialect
		occsql.Names
	}{
		"dialect":    {0, names},
		`"a b"`:      {occsql.MySQL, occsql.Names{Table: "a b", Key: "k", Value: "v", Version: "n"}},
		`"b.c"`:      {occsql.MySQL, occsql.Names{Table: "a.b.c", Key: "k", Value: "v", Version: "n"}},
		`""`:         {occsql.SQLite, occsql.Names{Table: "t", Key: "k", Version: "n"}},
		"\"n`; --\"": {occsql.MySQL, occsql.Names{Table: "t", Key: "k", Value: "v", Version: "n`; --"}},
	} {
		if _, err := occsql.NewColumn[int](c.Dialect, c.Names); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v, want %s", err, says)
		}
	}
}

// Names may include a schema, and may be SQL keywords.
func TestNamesAreQuoted(t *testing.T) {
	s := open(t, occsql.Postgres, "pgx", testserver.SharedPostgres(t).Database(t))
	for _, statement := range []string{
		`CREATE SCHEMA "order"`,
		`CREATE TABLE "order"."select" ("from" TEXT PRIMARY KEY, "where" TEXT NOT NULL, "version" BIGINT NOT NULL DEFAULT 0)`,
		`INSERT INTO "order"."select" VALUES ('x', 'y')`,
	} {
		must.Get(s.db.ExecContext(context.Background(), statement))(t)
	}
	c := must.Get(occsql.NewColumn[string](occsql.Postgres, occsql.Names{Table: "order.select", Key: "from", Value: "where", Version: "version"}))(t)
	got, err := c.Update(t.Context(), s.db, "x", func(s string) (string, error) { return s + "z", nil })
	if err != nil || got != "yz" {
		t.Errorf("%q, %v", got, err)
	}
}
