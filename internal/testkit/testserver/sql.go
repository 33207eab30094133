package testserver

import (
	"context"
	"database/sql"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
)

// SQLServer is the common part of SQL servers.
type SQLServer struct {
	*Process
	port   int
	driver string              // of database/sql, which the test registers
	admin  url.URL             // of the administrator, without host
	source func(string) string // what the driver wants in place of a URL

	databases, users atomic.Int64
}

// Addr returns the server's host and port.
func (s *SQLServer) Addr() string { return loopback(s.port) }

// Dir returns the folder that the server runs in.
func (s *SQLServer) Dir() string { return s.dir }

// URL returns how the administrator reaches the server, in a database that always exists.
func (s *SQLServer) URL() string { return s.in("").String() }

// in returns the administrator's URL of a database, of that which always exists if it is "".
func (s *SQLServer) in(database string) *url.URL {
	u := s.admin
	u.Host = s.Addr()
	if database != "" {
		u.Path = "/" + database
	}
	return &u
}

// DB returns a pool of connections to a URL of this server, closed with the test.
func (s *SQLServer) DB(tb testing.TB, url string) *sql.DB {
	tb.Helper()
	db, err := s.open(url)
	if err != nil {
		tb.Fatalf("testserver: %v", err)
	}
	tb.Cleanup(func() { db.Close() })
	return db
}

func (s *SQLServer) open(url string) (*sql.DB, error) { return sql.Open(s.driver, s.source(url)) }

// Exec does statements one after the other as the administrator, on one connection.
func (s *SQLServer) Exec(tb testing.TB, statements ...string) {
	tb.Helper()
	if err := s.exec(s.URL(), statements...); err != nil {
		tb.Fatalf("testserver: %v", err)
	}
}

func (s *SQLServer) exec(url string, statements ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	db, err := s.open(url)
	if err != nil {
		return err
	}
	defer db.Close()
	db.SetMaxOpenConns(1)
	for _, statement := range statements {
		if _, err := db.ExecContext(ctx, statement); err != nil {
			return fmt.Errorf("%s: %w", statement, err)
		}
	}
	return nil
}

// Ask returns the first field of the first row that the administrator gets for a query.
func (s *SQLServer) Ask(tb testing.TB, query string, args ...any) string {
	tb.Helper()
	answer, err := s.ask(query, args...)
	if err != nil {
		tb.Fatalf("testserver: %s: %v", query, err)
	}
	return answer
}

func (s *SQLServer) ask(query string, args ...any) (answer string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	db, err := s.open(s.URL())
	if err != nil {
		return "", err
	}
	defer db.Close()
	return answer, db.QueryRowContext(ctx, query, args...).Scan(&answer)
}

// database makes a database and has it dropped with the test.
func (s *SQLServer) database(tb testing.TB, create, drop string) string {
	tb.Helper()
	name := fmt.Sprintf("t%d", s.databases.Add(1))
	s.Exec(tb, create+name)
	tb.Cleanup(func() {
		if s.alive() {
			s.exec(s.URL(), fmt.Sprintf(drop, name)) // else it goes with the server
		}
	})
	return s.in(name).String()
}

// user makes a user with statements in which {user} is his name and {password} his
// password, and answers the URL as he has it.
func (s *SQLServer) user(tb testing.TB, database, password string, statements []string) string {
	tb.Helper()
	u, err := url.Parse(database)
	if err != nil {
		tb.Fatal(err)
	}
	name := fmt.Sprintf("u%d", s.users.Add(1))
	fill := strings.NewReplacer("{user}", name, "{password}", password)
	for i, statement := range statements {
		statements[i] = fill.Replace(statement)
	}
	if err := s.exec(s.in(strings.Trim(u.Path, "/")).String(), statements...); err != nil {
		tb.Fatalf("testserver: %v", err)
	}
	u.User = url.UserPassword(name, password)
	return u.String()
}

// userOf returns the name in a URL.
func userOf(tb testing.TB, userURL string) string {
	tb.Helper()
	u, err := url.Parse(userURL)
	if err != nil || u.User.Username() == "" {
		tb.Fatalf("testserver: a URL of a user is wanted: %q, %v", userURL, err)
	}
	return u.User.Username()
}

// ErrorLog returns the server's log.
func (s *SQLServer) ErrorLog() string {
	b, err := os.ReadFile(filepath.Join(s.dir, "log"))
	if err != nil {
		s.tb.Errorf("testserver: %v", err)
	}
	return string(b)
}

// CountLogged counts the lines of the error log that a regular expression matches.
func (s *SQLServer) CountLogged(pattern string) (n int) {
	re := regexp.MustCompile(pattern)
	for _, line := range strings.Split(s.ErrorLog(), "\n") {
		if re.MatchString(line) {
			n++
		}
	}
	return n
}

// isThis answers an error if the server that answers a query with its folder is another's.
func (s *SQLServer) isThis(query string) error {
	dir, err := s.ask(query)
	if err == nil && filepath.Clean(dir) != s.data() {
		err = fmt.Errorf("another server has the port: the one in %s", dir)
	}
	return err
}

func (s *SQLServer) data() string { return filepath.Join(s.dir, "data") }

// newSQL returns a server that is not started yet. driver is what database/sql reaches it with.
func newSQL(tb testing.TB, path string, who *account, driver string) *SQLServer {
	tb.Helper()
	if !slices.Contains(sql.Drivers(), driver) {
		tb.Fatalf("testserver: database/sql has no driver %q: the test must import a package that registers it, %s, say", driver,
			map[string]string{"mysql": "github.com/go-sql-driver/mysql", "pgx": "github.com/jackc/pgx/v5/stdlib"}[driver])
	}
	dir, err := newDir("sql")
	if err == nil {
		err = who.give(dir)
	}
	if err != nil {
		tb.Fatal(err)
	}
	return &SQLServer{Process: &Process{tb: tb, path: path, dir: dir, account: who}, driver: driver}
}

// fail ends the test for a server that can't be used.
func (s *SQLServer) fail(err error) {
	s.tb.Helper()
	s.end()
	s.tb.Fatalf("testserver: %v", err)
}

// prepare runs a program that makes a server's data, as the account that will own them.
func (p *Process) prepare(path string, args ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	cmd := commandAs(ctx, p.account, path, args...)
	cmd.Dir = p.dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", path, err, tail(string(out), 1000))
	}
	return nil
}
