package main

import (
	"testing"

	"github.com/distlock/distlock/examples/internal/exampletest"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

func TestMain(m *testing.M) { exampletest.Main(m, main) }

// Processes that start together all find the schema in place.
func TestProcessesStartTogether(t *testing.T) {
	database := testserver.SharedPostgres(t).Database(t)
	var all []*exampletest.Process
	for range 4 {
		all = append(all, exampletest.Start(t, "DATABASE_URL="+database))
	}
	for _, p := range all {
		expect.Equal(t, p.Next(t), "migrated: <nil>")
		p.End(t)
	}
}
