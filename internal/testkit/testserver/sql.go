package testserver

import (
	"context"
	"database/sql"
	"fmt"
	"net/url"
	"os"
	"os/exec"
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
	driver string              // of database/sql, which the test registers
	admin  url.URL             // of the administrator, without host
	source func(string) string // what the driver wants in place of a URL

	databases, users atomic.Int64
}

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

// user makes a user with statements in which {user} and {password} stand for the user's name and password, and returns
// the URL for that user.
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

// newSQL returns a server that is not started yet. driver is its driver's name in database/sql.
func newSQL(tb testing.TB, coordinator string, p *program, driver string) *SQLServer {
	tb.Helper()
	if !slices.Contains(sql.Drivers(), driver) {
		tb.Fatalf("testserver: database/sql has no driver %q: the test must import a package that registers it, %s, say", driver,
			map[string]string{"mysql": "github.com/go-sql-driver/mysql", "pgx": "github.com/jackc/pgx/v5/stdlib"}[driver])
	}
	return &SQLServer{Process: newProcess(tb, coordinator, p), driver: driver}
}

// unprivileged makes the server run as another user than root.
func (s *SQLServer) unprivileged() {
	s.tb.Helper()
	who, err := unprivileged()
	if err == nil {
		s.account, err = who, who.give(s.dir)
	}
	s.usable(err)
}

// prepare runs a program that makes a server's data, as the account that will own them.
func (p *Process) prepare(path string, args ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Dir, cmd.SysProcAttr = p.dir, p.account.apply(nil)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", path, err, tail(string(out), 1000))
	}
	return nil
}
