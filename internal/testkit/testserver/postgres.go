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
	"time"
)

var postgresServer = &program{name: "postgres", env: "DISTLOCK_TEST_POSTGRES", debian: "postgresql"}

// PostgresServer is a PostgreSQL with data of its own. It logs each error that a client was
// answered, see ErrorLog.
type PostgresServer struct {
	*SQLServer
	options PostgresOptions
}

// PostgresOptions are what a server can have beyond the usual.
type PostgresOptions struct {
	// Version is another one than the installed: "12" or "18". They have no Standby.
	Version string

	// ReadOnly makes transactions read-only unless they say otherwise. A true replica is a
	// Standby.
	ReadOnly bool

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

// Database makes a database, dropped with the test, and answers the administrator's URL of
// it.
func (s *PostgresServer) Database(tb testing.TB) string {
	tb.Helper()
	drop := "DROP DATABASE %s WITH (FORCE)"
	if s.options.Version == "12" {
		drop = "DROP DATABASE %s" // if nobody is left in it
	}
	return s.database(tb, "CREATE DATABASE ", drop)
}

// User makes a user and answers the URL of a database as he has it. Grants are such as
// "SELECT ON ALL TABLES IN SCHEMA public", in that database.
func (s *PostgresServer) User(tb testing.TB, database, password string, grants ...string) string {
	tb.Helper()
	statements := []string{"CREATE ROLE {user} LOGIN PASSWORD '{password}'"}
	for _, grant := range grants {
		statements = append(statements, "GRANT "+grant+" TO {user}")
	}
	return s.user(tb, database, password, statements)
}

// Expire makes the password of a URL that User has answered one whose time is over.
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
	err := r.prepare(filepath.Join(filepath.Dir(r.path), "pg_basebackup"), "-D", r.data(), "-d", u.String(), "-R", "-c", "fast", "--no-sync")
	if err == nil {
		err = r.launch()
	}
	if err != nil {
		tb.Fatalf("testserver: %v", err)
	}
	return r
}

func startPostgres(tb testing.TB, o PostgresOptions) *PostgresServer {
	tb.Helper()
	s := newPostgres(tb, o)
	err := s.initialize()
	if err == nil {
		err = s.launch()
	}
	if err != nil {
		s.fail(err)
	}
	return s
}

// newPostgres returns a server without data.
func newPostgres(tb testing.TB, o PostgresOptions) *PostgresServer {
	tb.Helper()
	path, err := o.program()
	if err != nil {
		missing(tb, "postgres", err)
	}
	who, err := unprivileged()
	if err != nil {
		missing(tb, "postgres", err)
	}
	s := &PostgresServer{SQLServer: newSQL(tb, path, who, "pgx"), options: o}
	s.ends, s.family = intr, true
	s.source = func(url string) string { return url }
	s.admin = url.URL{Scheme: "postgres", User: url.UserPassword("postgres", "pw"), Path: "/postgres", RawQuery: "sslmode=disable"}
	s.ready = func() error { return s.isThis("SHOW data_directory") }
	return s
}

// initialize makes the data. They need not outlive this machine; what is written later is
// flushed as ever.
func (s *PostgresServer) initialize() error {
	password := filepath.Join(s.dir, "password")
	if err := os.WriteFile(password, []byte("pw"), 0o644); err != nil {
		return err
	}
	return s.prepare(filepath.Join(filepath.Dir(s.path), "initdb"), "-D", s.data(), "-U", "postgres", "--pwfile", password,
		"--auth", "md5", "--encoding", "UTF8", "--no-locale", "--no-sync")
}

func (s *PostgresServer) launch() error {
	return launch(func(port int) error {
		s.port, s.args = port, s.arguments(port)
		return s.start()
	})
}

func (s *PostgresServer) arguments(port int) []string {
	args := []string{"-D", s.data(), "-h", "127.0.0.1", "-p", strconv.Itoa(port), "-k", ""}
	settings := []string{"max_connections=800", "log_line_prefix=%m [%p] %q%u@%d %e ", "log_checkpoints=off", "dynamic_shared_memory_type=mmap"}
	if s.options.ReadOnly {
		settings = append(settings, "default_transaction_read_only=on")
	}
	for _, setting := range append(settings, s.options.Settings...) {
		args = append(args, "-c", setting)
	}
	return args
}

// end lets a running server give back the memory that it shares with others of the machine,
// before it is killed.
func (s *PostgresServer) end() {
	if s.done != nil {
		s.signalFamily(resume)
		s.cmd.Process.Signal(quit)
		select {
		case <-s.done:
		case <-time.After(startTimeout):
		}
	}
	s.Process.end()
}

var sharedCountingPostgres shared[*PostgresServer]

// SharedCountingPostgres returns a SharedPostgres that can be asked what it was asked: a database
// in which pg_stat_statements was created has every statement and how often it was called.
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

// program returns the path of the server that is wanted; its other programs are beside it.
func (o PostgresOptions) program() (string, error) {
	if o.Version != "" {
		home, err := provided("postgres-" + o.Version)
		return filepath.Join(home, "bin", "postgres"), err
	}
	path, err := postgresServer.find()
	if err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(path)
}

var pgbouncer = &program{name: "pgbouncer", env: "DISTLOCK_TEST_PGBOUNCER", debian: "pgbouncer"}

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
	s := &PgBouncerServer{SQLServer: newSQL(tb, path, who, "pgx"), options: o}
	tb.Cleanup(s.end)
	s.source, s.admin = unprepared, pg.admin
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
