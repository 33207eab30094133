package sqlwrites_test

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/distlock/distlock/fence/fencesql"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
	"github.com/distlock/distlock/occ/occsql"
	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgconn"
	_ "github.com/jackc/pgx/v5/stdlib"
	"modernc.org/sqlite"
)

func TestMain(m *testing.M) { os.Exit(testserver.Run(m)) }

// patience is how long tests wait for an expected event.
const patience = time.Minute

// opened is a new database for one test.
type opened struct {
	dialect fencesql.Dialect
	occ     occsql.Dialect
	db      *sql.DB
}

var databases = map[string]func(t *testing.T) opened{
	"mariadb": func(t *testing.T) opened {
		url := testserver.SharedMariaDB(t).Database(t)
		return open(t, fencesql.MySQL, occsql.MySQL, "mysql", testserver.MariaDBSource(url))
	},
	"postgres": func(t *testing.T) opened { return postgres(t, "") },
	"sqlite": func(t *testing.T) opened {
		file := filepath.Join(t.TempDir(), "data.db")
		return open(t, fencesql.SQLite, occsql.SQLite, "sqlite", "file:"+file+"?_pragma=busy_timeout(60000)&_pragma=journal_mode(wal)")
	},
}

func postgres(t *testing.T, settings string) opened {
	return open(t, fencesql.Postgres, occsql.Postgres, "pgx", testserver.SharedPostgres(t).Database(t)+settings)
}

func open(t *testing.T, d fencesql.Dialect, occ occsql.Dialect, driver, source string) opened {
	t.Helper()
	db := must.Get(sql.Open(driver, source))(t)
	t.Cleanup(func() { db.Close() })
	return opened{d, occ, db}
}

// each runs a test on each database.
func each(t *testing.T, test func(t *testing.T, o opened)) {
	for name, open := range databases {
		t.Run(name, func(t *testing.T) { test(t, open(t)) })
	}
}

// guard creates a guard table.
func (o opened) guard(t *testing.T) *fencesql.Guard {
	t.Helper()
	g, err := fencesql.New(o.dialect, nil)
	if err == nil {
		err = g.Create(t.Context(), o.db)
	}
	must.OK(t, err)
	return g
}

func (o opened) exec(t *testing.T, statements ...string) {
	t.Helper()
	for _, s := range statements {
		must.OK(t, expect.Err(o.db.ExecContext(t.Context(), s)), s)
	}
}

// number returns the result of a query.
func (o opened) number(t *testing.T, query string) (n uint64) {
	t.Helper()
	must.OK(t, o.db.QueryRowContext(t.Context(), query).Scan(&n), query)
	return n
}

// begin begins a transaction that ends with the test.
func (o opened) begin(t *testing.T, level sql.IsolationLevel) *sql.Tx {
	t.Helper()
	tx := must.Get(o.db.BeginTx(context.Background(), &sql.TxOptions{Isolation: level}))(t)
	t.Cleanup(func() { _ = tx.Rollback() })
	return tx
}

// again reports whether the database requires the transaction to be restarted.
func again(err error) bool {
	var my *mysql.MySQLError
	var pg *pgconn.PgError
	var lite *sqlite.Error
	switch {
	case errors.As(err, &my):
		return my.Number == 1213
	case errors.As(err, &pg):
		return slices.Contains([]string{"40001", "40P01"}, pg.Code)
	case errors.As(err, &lite):
		return lite.Code()&0xff == 5 // SQLITE_BUSY and its variants
	}
	return errors.Is(err, fencesql.ErrSnapshot)
}
