package bench

import (
	"context"
	"database/sql"
	"testing"

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
		if _, err := db.Exec(statement); err != nil {
			tb.Fatalf("%s: %v", statement, err)
		}
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
