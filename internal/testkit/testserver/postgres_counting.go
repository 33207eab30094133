package testserver

import "testing"

var sharedCountingPostgres shared[*PostgresServer]

// SharedCountingPostgres is a SharedPostgres that can be asked what it was asked: a database
// in which pg_stat_statements was created has every statement and how often it was called.
func SharedCountingPostgres(tb testing.TB) *PostgresServer {
	tb.Helper()
	return sharedCountingPostgres.get(func() *PostgresServer {
		return startPostgres(tb, PostgresOptions{Settings: []string{"shared_preload_libraries=pg_stat_statements"}})
	})
}
