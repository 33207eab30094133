package testserver

import (
	"cmp"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var pgbouncer = &program{name: "pgbouncer", env: "DISTLOCK_TEST_PGBOUNCER", dirs: []string{"/usr/sbin"}, debian: "pgbouncer"}

// PgBouncerServer is a pooler in front of a PostgreSQL.
type PgBouncerServer struct {
	*SQLServer
	options PgBouncerOptions
}

// PgBouncerOptions are what a pooler can have beyond the usual.
type PgBouncerOptions struct {
	// Mode is for how long a client has a connection of the server to itself: "session",
	// "transaction" or "statement". Empty means "transaction".
	Mode string

	// Settings are further ones as in the section [pgbouncer] of pgbouncer.ini:
	// "default_pool_size=2".
	Settings []string
}

// PgBouncer starts a pooler for all databases of a server.
func PgBouncer(tb testing.TB, pg *PostgresServer, o PgBouncerOptions) *PgBouncerServer {
	tb.Helper()
	path, err := pgbouncer.find()
	if err != nil {
		missing(tb, "pgbouncer", err)
	}
	who, err := unprivileged()
	if err != nil {
		missing(tb, "pgbouncer", err)
	}
	s := &PgBouncerServer{SQLServer: newSQL(tb, path, who), options: o}
	tb.Cleanup(s.end)
	s.driver, s.source, s.admin = pg.driver, unprepared, pg.admin
	s.ready = func() error { return s.reaches(pg) }
	err = launch(func(port int) error {
		s.port = port
		if err := s.configure(pg); err != nil {
			return err
		}
		return s.start()
	})
	if err != nil {
		tb.Fatalf("testserver: %v", err)
	}
	return s
}

// Via is a URL of the server behind the pooler, led through the pooler.
func (s *PgBouncerServer) Via(serverURL string) string {
	u, err := url.Parse(serverURL)
	if err != nil {
		s.tb.Fatal(err)
	}
	u.Host = s.Addr()
	return u.String()
}

// unprepared is a URL for a client that prepares no statements: the next may go to another
// connection of the server.
func unprepared(url string) string { return url + "&default_query_exec_mode=exec" }

// reaches succeeds if one gets to a server by way of the pooler. That it is this pooler is
// known from its being alive: it ends if somebody else has the port.
func (s *PgBouncerServer) reaches(pg *PostgresServer) error {
	dir, err := s.ask("SHOW data_directory")
	if err == nil && dir != pg.data() {
		err = fmt.Errorf("it leads to the server of %s", dir)
	}
	return err
}

func (s *PgBouncerServer) configure(pg *PostgresServer) error {
	users := filepath.Join(s.dir, "users")
	if err := os.WriteFile(users, []byte(`"postgres" "pw"`+"\n"), 0o600); err != nil {
		return err
	}
	lines := append([]string{
		"[databases]", fmt.Sprintf("* = host=127.0.0.1 port=%d", pg.port),
		"[pgbouncer]", "listen_addr=127.0.0.1", fmt.Sprintf("listen_port=%d", s.port), "unix_socket_dir=",
		"auth_type=md5", "auth_file=" + users, "auth_user=postgres",
		"max_client_conn=500", "pool_mode=" + cmp.Or(s.options.Mode, "transaction"),
	}, s.options.Settings...)
	ini := filepath.Join(s.dir, "pgbouncer.ini")
	s.args = []string{ini}
	if err := os.WriteFile(ini, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		return err
	}
	return s.account.give(s.dir)
}
