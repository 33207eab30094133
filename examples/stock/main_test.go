package main

import (
	"database/sql"
	"fmt"
	"math"
	"testing"

	"github.com/distlock/distlock/examples/internal/exampletest"
	"github.com/distlock/distlock/fence/fencesql"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

func TestMain(m *testing.M) { exampletest.Main(m, main) }

// Processes that sell at the same time sell what is there, and a guard that has seen a greater fence refuses them.
func TestNoItemIsSoldTwice(t *testing.T) {
	exampletest.OnStores(t, func(t *testing.T, url string) {
		server := testserver.SharedPostgres(t)
		database := server.Database(t)
		db := server.DB(t, database)
		must.Get(db.Exec("CREATE TABLE stock (sku TEXT PRIMARY KEY, quantity INT NOT NULL)"))(t)
		must.Get(db.Exec("INSERT INTO stock VALUES ('apple', 5)"))(t)
		guard := must.Get(fencesql.New(fencesql.Postgres, nil))(t)
		must.OK(t, guard.Create(t.Context(), db))
		var all []*exampletest.Process
		for range 6 {
			all = append(all, exampletest.Start(t, "DISTLOCK_URL="+url, "DATABASE_URL="+database))
		}
		said := map[string]int{}
		for _, p := range all {
			line := p.Next(t)
			said[line]++
			if line == "done" {
				p.End(t)
				continue
			}
			p.Fail(t)
		}
		expect.Equal(t, fmt.Sprint(said), "map[done:5 sold out:1]")
		var left int
		must.OK(t, db.QueryRow("SELECT quantity FROM stock").Scan(&left))
		expect.Equal(t, left, 0, "items left")
		must.OK(t, guard.Do(t.Context(), db, "stock:apple", math.MaxInt64-1, func(*sql.Tx) error { return nil }))
		exampletest.Fails(t, "stale", "DISTLOCK_URL="+url, "DATABASE_URL="+database) // its fence is smaller than the guard's
	})
}

func TestItFailsWithoutAServer(t *testing.T) {
	exampletest.Fails(t, "connection refused", "DISTLOCK_URL=redis://127.0.0.1:1")
	exampletest.Fails(t, "connection refused", "DISTLOCK_URL=mem:", "DATABASE_URL=postgres://127.0.0.1:1/shop")
}
