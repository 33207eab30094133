package testserver

import (
	"cmp"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

var postgresServer = &program{name: "postgres", env: "DISTLOCK_TEST_POSTGRES", debian: "postgresql"}

// PostgresServer is a PostgreSQL with data of its own. It logs each error that was sent to a
// client, see ErrorLog.
type PostgresServer struct {
	*SQLServer
	options PostgresOptions
}

// PostgresOptions configure a server. The zero value has the defaults.
type PostgresOptions struct {
	// Version is another one than the installed: "12" or "18". They have no Standby.
	Version string

	// Settings are further ones as in postgresql.conf: "max_connections=20".
	Settings []string
}

// Postgres starts a server of the test's own.
func Postgres(tb testing.TB, o PostgresOptions) *PostgresServer {
	tb.Helper()
	s := startPostgres(tb, o)
	tb.Cleanup(s.end)
	return s
}

var sharedPostgres shared[*PostgresServer]

// SharedPostgres returns a server that all tests of the process use: they must not stop it, and
// take a Database each.
func SharedPostgres(tb testing.TB) *PostgresServer {
	tb.Helper()
	return sharedPostgres.get(func() *PostgresServer { return startPostgres(tb, PostgresOptions{}) })
}

// Database makes a database, which is dropped with the test. It returns the administrator's URL of it.
func (s *PostgresServer) Database(tb testing.TB) string {
	tb.Helper()
	drop := "DROP DATABASE %s WITH (FORCE)"
	if s.options.Version == "12" {
		drop = "DROP DATABASE %s" // fails while clients are connected
	}
	return s.database(tb, "CREATE DATABASE ", drop)
}

// User makes a user, and returns the URL of a database for that user. Grants are such as
// "SELECT ON ALL TABLES IN SCHEMA public", in that database.
func (s *PostgresServer) User(tb testing.TB, database, password string, grants ...string) string {
	tb.Helper()
	statements := []string{"CREATE ROLE {user} LOGIN PASSWORD '{password}'"}
	for _, grant := range grants {
		statements = append(statements, "GRANT "+grant+" TO {user}")
	}
	return s.user(tb, database, password, statements)
}

// Expire makes a password expire: the one in a URL that User has returned.
func (s *PostgresServer) Expire(tb testing.TB, userURL string) {
	tb.Helper()
	s.Exec(tb, fmt.Sprintf("ALTER ROLE %s VALID UNTIL '2001-01-01'", userOf(tb, userURL)))
}

// Standby starts a replica of the server, which follows it and can only be read.
func (s *PostgresServer) Standby(tb testing.TB) *PostgresServer {
	tb.Helper()
	r := newPostgres(tb, PostgresOptions{})
	tb.Cleanup(r.end)
	u := s.in("")
	u.Path = ""
	r.usable(r.prepare(r.beside("pg_basebackup"), "-D", r.data(), "-d", u.String(), "-R", "-c", "fast", "--no-sync"))
	r.usable(r.start())
	return r
}

func startPostgres(tb testing.TB, o PostgresOptions) *PostgresServer {
	tb.Helper()
	s := newPostgres(tb, o)
	s.usable(s.initialize())
	s.usable(s.start())
	return s
}

// newPostgres returns a server without data.
func newPostgres(tb testing.TB, o PostgresOptions) *PostgresServer {
	tb.Helper()
	p := postgresServer
	if o.Version != "" {
		p = &program{cached: "postgres-" + o.Version, name: "bin/postgres"}
	}
	s := &PostgresServer{SQLServer: newSQL(tb, "postgres", p, "pgx"), options: o}
	s.unprivileged()
	var err error
	s.path, err = filepath.EvalSymlinks(s.path) // its other programs are beside it
	s.usable(err)
	s.ends, s.family = intr, true
	s.source = func(url string) string { return url }
	s.admin = url.URL{Scheme: "postgres", User: url.UserPassword("postgres", "pw"), Path: "/postgres", RawQuery: "sslmode=disable"}
	s.ready = func() error { return s.isThis("SHOW data_directory") }
	return s
}

// beside returns the path of another program of the same version.
func (s *PostgresServer) beside(program string) string {
	return filepath.Join(filepath.Dir(s.path), program)
}

// initialize makes the data. They need not outlive this machine; what is written later is
// flushed as ever.
func (s *PostgresServer) initialize() error {
	password := filepath.Join(s.dir, "password")
	if err := os.WriteFile(password, []byte("pw"), 0o644); err != nil {
		return err
	}
	return s.prepare(s.beside("initdb"), "-D", s.data(), "-U", "postgres", "--pwfile", password,
		"--auth", "md5", "--encoding", "UTF8", "--no-locale", "--no-sync")
}

// start starts a server that has data.
func (s *PostgresServer) start() error {
	return s.launch(func() error {
		s.args = []string{"-D", s.data(), "-h", "127.0.0.1", "-p", strconv.Itoa(s.port), "-k", ""}
		settings := []string{"max_connections=800", "log_line_prefix=%m [%p] %q%u@%d %e ", "log_checkpoints=off", "dynamic_shared_memory_type=mmap"}
		for _, setting := range append(settings, s.options.Settings...) {
			s.args = append(s.args, "-c", setting)
		}
		return nil
	})
}

var sharedCountingPostgres shared[*PostgresServer]

// SharedCountingPostgres returns a SharedPostgres that counts its statements: a database with
// pg_stat_statements lists every statement and how often it was called.
func SharedCountingPostgres(tb testing.TB) *PostgresServer {
	tb.Helper()
	return sharedCountingPostgres.get(func() *PostgresServer {
		return startPostgres(tb, PostgresOptions{Settings: []string{"shared_preload_libraries=pg_stat_statements"}})
	})
}

var sharedPostgresVersions = map[string]*shared[*PostgresServer]{"12": {}, "18": {}}

// SharedPostgresVersion is SharedPostgres of another version; see PostgresOptions.Version.
func SharedPostgresVersion(tb testing.TB, version string) *PostgresServer {
	tb.Helper()
	s := sharedPostgresVersions[version]
	if s == nil {
		tb.Fatalf("testserver: no PostgreSQL %s can be had", version)
	}
	return s.get(func() *PostgresServer { return startPostgres(tb, PostgresOptions{Version: version}) })
}

var pgbouncer = &program{name: "pgbouncer", env: "DISTLOCK_TEST_PGBOUNCER", debian: "pgbouncer"}

// PgBouncerServer is a pooler in front of a PostgreSQL.
type PgBouncerServer struct{ *SQLServer }

// PgBouncerOptions configure a pooler. The zero value has the defaults.
type PgBouncerOptions struct {
	// Mode is for how long a client has a connection of the server to itself: "session",
	// "transaction" or "statement". Empty means "transaction".
	Mode string
}

// PgBouncer starts a pooler for all databases of a server.
func PgBouncer(tb testing.TB, pg *PostgresServer, o PgBouncerOptions) *PgBouncerServer {
	tb.Helper()
	s := &PgBouncerServer{newSQL(tb, "pgbouncer", pgbouncer, "pgx")}
	s.unprivileged()
	tb.Cleanup(s.end)
	s.source, s.admin = unprepared, pg.admin
	s.ready = func() error { return s.reaches(pg) }
	s.usable(s.launch(func() error { return s.configure(pg, o) }))
	return s
}

// Via returns a URL of the server behind the pooler, led through the pooler.
func (s *PgBouncerServer) Via(serverURL string) string {
	u, err := url.Parse(serverURL)
	if err != nil {
		s.tb.Fatal(err)
	}
	u.Host = s.Addr()
	return u.String()
}

// unprepared returns a URL for a client that prepares no statements: the next may go to another
// connection of the server.
func unprepared(url string) string { return url + "&default_query_exec_mode=exec" }

// reaches succeeds if one gets to a server by way of the pooler. That it is this pooler is
// known from its being alive: it ends if another server has the port.
func (s *PgBouncerServer) reaches(pg *PostgresServer) error {
	dir, err := s.ask("SHOW data_directory")
	if err == nil && dir != pg.data() {
		err = fmt.Errorf("it leads to the server of %s", dir)
	}
	return err
}

func (s *PgBouncerServer) configure(pg *PostgresServer, o PgBouncerOptions) error {
	users := filepath.Join(s.dir, "users")
	if err := os.WriteFile(users, []byte(`"postgres" "pw"`+"\n"), 0o600); err != nil {
		return err
	}
	lines := []string{
		"[databases]", fmt.Sprintf("* = host=127.0.0.1 port=%d", pg.port),
		"[pgbouncer]", "listen_addr=127.0.0.1", fmt.Sprintf("listen_port=%d", s.port), "unix_socket_dir=",
		"auth_type=md5", "auth_file=" + users, "auth_user=postgres",
		"max_client_conn=500", "pool_mode=" + cmp.Or(o.Mode, "transaction"),
	}
	ini := filepath.Join(s.dir, "pgbouncer.ini")
	s.args = []string{ini}
	if err := os.WriteFile(ini, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		return err
	}
	return s.account.give(s.dir)
}
