package main

import (
	"strings"
	"testing"

	"github.com/distlock/distlock/examples/internal/exampletest"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

func TestMain(m *testing.M) { exampletest.Main(m, main) }

// Processes that start together all find the schema in place.
func TestProcessesStartTogether(t *testing.T) {
	database := testserver.SharedPostgres(t).Database(t)
	var all []*exampletest.Process
	for range 4 {
		plain, _, _ := strings.Cut(database, "?")
		all = append(all, exampletest.Start(t, "DATABASE_URL="+plain))
	}
	for _, p := range all {
		expect.Equal(t, p.Next(t), "migrated")
		p.End(t)
	}
}

// A migration that failed ends with another code than 0: what starts after it must not.
func TestItFails(t *testing.T) {
	exampletest.Fails(t, "connection refused", "DATABASE_URL=postgres://127.0.0.1:1/shop")
	exampletest.Fails(t, "not a URL", "DATABASE_URL=postgres://u:s3cr3t%zz@127.0.0.1:1/shop")
	server := testserver.SharedPostgres(t)
	database := server.Database(t)
	must.Get(server.DB(t, database).Exec("CREATE TYPE stock AS ENUM ('in the way')"))(t)
	exampletest.Fails(t, "not migrated: ", "DATABASE_URL="+database)
}
