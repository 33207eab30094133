package sqlwrites_test

import (
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/occ"
	"github.com/distlock/distlock/occ/occsql"
	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgconn"
)

// apples is a database with 0 apples and 5 pears in stock.
type apples struct {
	opened
	stock *occsql.Column[int]
}

var names = occsql.Names{Table: "stock", Key: "sku", Value: "quantity", Version: "version"}

func eachStock(t *testing.T, test func(t *testing.T, s apples)) {
	each(t, func(t *testing.T, o opened) { test(t, o.apples(t)) })
}

func (o opened) apples(t *testing.T) apples {
	t.Helper()
	o.exec(t, "CREATE TABLE stock (sku VARCHAR(50) PRIMARY KEY, quantity INT NOT NULL, version BIGINT NOT NULL DEFAULT 0)",
		"INSERT INTO stock (sku, quantity) VALUES ('apple', 0), ('pear', 5)")
	return apples{o, must.Get(occsql.NewColumn[int](o.occ, names))(t)}
}

func (s apples) quantity(t *testing.T, sku string) uint64 {
	t.Helper()
	return s.number(t, "SELECT quantity FROM stock WHERE sku = '"+sku+"'")
}

func one(n int) (int, error) { return n + 1, nil }

// Sixteen goroutines increment one counter without losing an increment.
func TestNothingIsLost(t *testing.T) {
	eachStock(t, func(t *testing.T, s apples) {
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
		expect.Equal(t, s.quantity(t, "apple"), 160, "updates were counted")
	})
}

// Another client writes once between read and write, also the same value.
func TestOneConflict(t *testing.T) {
	eachStock(t, func(t *testing.T, s apples) {
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
	eachStock(t, func(t *testing.T, s apples) {
		same := func(n int) (int, error) { return n, nil }
		if n, err := s.stock.Update(t.Context(), s.db, "pear", same, occ.Attempts(1)); err != nil || n != 5 {
			t.Errorf("%d, %v", n, err)
		}
	})
}

// The database's error is returned, with the row's name.
func TestErrors(t *testing.T) {
	eachStock(t, func(t *testing.T, s apples) {
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
	s := postgres(t, "&default_transaction_isolation=serializable").apples(t)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			expect.OK(t, expect.Err(s.stock.Update(t.Context(), s.db, "apple", one, occ.Attempts(10_000))))
		})
	}
	wg.Wait()
	expect.Equal(t, s.quantity(t, "apple"), 8, "updates were counted")
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
	o := postgres(t, "")
	o.exec(t, `CREATE SCHEMA "order"`,
		`CREATE TABLE "order"."select" ("from" TEXT PRIMARY KEY, "where" TEXT NOT NULL, "version" BIGINT NOT NULL DEFAULT 0)`,
		`INSERT INTO "order"."select" VALUES ('x', 'y')`)
	c := must.Get(occsql.NewColumn[string](occsql.Postgres, occsql.Names{Table: "order.select", Key: "from", Value: "where", Version: "version"}))(t)
	got, err := c.Update(t.Context(), o.db, "x", func(s string) (string, error) { return s + "z", nil })
	if err != nil || got != "yz" {
		t.Errorf("%q, %v", got, err)
	}
}
