package bench

import (
	"context"
	"database/sql"
	"testing"

	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// mariaServer is a database on a MariaDB server.
type mariaServer struct {
	*testserver.MariaDBServer
	url   string
	admin *sql.DB
	asked int64 // number of usage's own queries
}

func startMariaDB(tb testing.TB) coordinator {
	tb.Helper()
	s := testserver.SharedMariaDB(tb)
	url := s.Database(tb)
	admin := s.DB(tb, url)
	execAll(tb, admin,
		`CREATE TABLE bench_rows (k VARCHAR(64) PRIMARY KEY, owner VARCHAR(64), until BIGINT NOT NULL DEFAULT 0, fence BIGINT NOT NULL DEFAULT 0)`,
		`CREATE TABLE bench_keys (k VARCHAR(64) PRIMARY KEY, owner VARCHAR(64) NOT NULL, until BIGINT NOT NULL)`)
	return &mariaServer{MariaDBServer: s, url: url, admin: admin}
}

func execAll(tb testing.TB, db *sql.DB, statements ...string) {
	tb.Helper()
	for _, statement := range statements {
		must.OK(tb, expect.Err(db.Exec(statement)), statement)
	}
}

// Addr returns the URL of the database.
func (s *mariaServer) Addr() string { return s.url }

func (s *mariaServer) version() (v string, err error) {
	return v, s.admin.QueryRow("SELECT CONCAT('MariaDB ', SUBSTRING_INDEX(VERSION(), '-', 1))").Scan(&v)
}

func (s *mariaServer) usage(contender) (u usage, err error) {
	var name string
	s.asked++
	row := s.admin.QueryRowContext(context.Background(), "SHOW GLOBAL STATUS LIKE 'Questions'")
	if err := row.Scan(&name, &u.sent); err != nil {
		return u, err
	}
	u.sent -= s.asked
	u.cpu, err = cpuOf(s.PID())
	return u, err
}

// postgresServer is a database on a PostgreSQL server.
type postgresServer struct {
	*testserver.PostgresServer
	url   string
	admin *sql.DB
}

func startPostgres(tb testing.TB) coordinator {
	tb.Helper()
	s := testserver.SharedCountingPostgres(tb)
	url := s.Database(tb)
	admin := s.DB(tb, url)
	execAll(tb, admin,
		`CREATE EXTENSION pg_stat_statements`,
		`CREATE TABLE bench_rows (k text PRIMARY KEY, owner text, until bigint NOT NULL DEFAULT 0, fence bigint NOT NULL DEFAULT 0) WITH (fillfactor = 50)`,
		`CREATE TABLE bench_keys (k text PRIMARY KEY, owner text NOT NULL, until bigint NOT NULL)`,
		`CREATE SEQUENCE bench_fences`)
	return &postgresServer{s, url, admin}
}

// Addr returns the URL of the database.
func (s *postgresServer) Addr() string { return s.url }

func (s *postgresServer) version() (v string, err error) {
	return v, s.admin.QueryRow(`SELECT 'PostgreSQL ' || split_part(current_setting('server_version'), ' ', 1)`).Scan(&v)
}

// usage does not count its own queries.
func (s *postgresServer) usage(contender) (u usage, err error) {
	const sum = `SELECT coalesce(sum(calls), 0)::bigint FROM pg_stat_statements WHERE query NOT LIKE '%pg_stat_statements%'`
	if err := s.admin.QueryRowContext(context.Background(), sum).Scan(&u.sent); err != nil {
		return u, err
	}
	u.cpu, err = cpuOfFamily(s.PID())
	return u, err
}
