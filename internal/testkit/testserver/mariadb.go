package testserver

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

var (
	mariadbServer  = &program{name: "mariadbd", env: "DISTLOCK_TEST_MARIADB", debian: "mariadb-server"}
	mariadbInstall = &program{name: "mariadb-install-db", env: "DISTLOCK_TEST_MARIADB_INSTALL_DB", debian: "mariadb-server"}
)

// MariaDBServer is a MariaDB with data of its own. It logs deadlocks, see ErrorLog, and
// each error that was sent to a client, see SQLErrors.
type MariaDBServer struct{ *SQLServer }

// MariaDBOptions configure a server. The zero value has the defaults.
type MariaDBOptions struct {
	// Args are further options as on mariadbd's command line.
	Args []string
}

// MariaDB starts a server of the test's own.
func MariaDB(tb testing.TB, o MariaDBOptions) *MariaDBServer {
	tb.Helper()
	s := startMariaDB(tb, o)
	tb.Cleanup(s.end)
	return s
}

var sharedMariaDB shared[*MariaDBServer]

// SharedMariaDB returns a server that all tests of the process use: they must not stop it, and
// take a Database each.
func SharedMariaDB(tb testing.TB) *MariaDBServer {
	tb.Helper()
	return sharedMariaDB.get(func() *MariaDBServer { return startMariaDB(tb, MariaDBOptions{}) })
}

// Database makes a database, which is dropped with the test. It returns the administrator's URL of it.
func (s *MariaDBServer) Database(tb testing.TB) string {
	tb.Helper()
	return s.database(tb, "CREATE DATABASE ", "DROP DATABASE %s")
}

// User makes a user, and returns the URL of a database for that user. Grants are such as
// "SELECT, INSERT ON t1.*".
func (s *MariaDBServer) User(tb testing.TB, database, password string, grants ...string) string {
	tb.Helper()
	statements := []string{"CREATE USER {user}@'%' IDENTIFIED BY '{password}'"}
	for _, grant := range grants {
		statements = append(statements, "GRANT "+grant+" TO {user}@'%'")
	}
	return s.user(tb, database, password, statements)
}

// Expire makes a password expire: the one in a URL that User has returned.
func (s *MariaDBServer) Expire(tb testing.TB, userURL string) {
	tb.Helper()
	s.Exec(tb, fmt.Sprintf("ALTER USER %s@'%%' PASSWORD EXPIRE", userOf(tb, userURL)))
}

// SQLErrors returns all errors that were sent to clients, a line each: the time, the client,
// "ERROR", the number and the text, and the statement.
func (s *MariaDBServer) SQLErrors() []string {
	b, err := os.ReadFile(filepath.Join(s.data(), "sql_errors.log"))
	if err != nil {
		s.tb.Errorf("testserver: %v", err)
	}
	return strings.Split(strings.TrimSpace(string(b)), "\n")
}

// MariaDBSource returns a mysql:// URL as sql.Open("mysql", …) wants it.
func MariaDBSource(rawURL string) string {
	u, err := url.Parse(rawURL)
	if err != nil {
		return rawURL // which the driver refuses
	}
	source := fmt.Sprintf("tcp(%s)/%s?interpolateParams=true", u.Host, url.PathEscape(strings.Trim(u.Path, "/")))
	if u.User == nil {
		return source
	}
	password, _ := u.User.Password()
	return u.User.Username() + ":" + password + "@" + source
}

func startMariaDB(tb testing.TB, o MariaDBOptions) *MariaDBServer {
	tb.Helper()
	s := &MariaDBServer{newSQL(tb, "mariadb", mariadbServer, "mysql")}
	s.source = MariaDBSource
	s.admin = url.URL{Scheme: "mysql", User: url.UserPassword("root", "pw"), Path: "/mysql"}
	s.ready = func() error { return s.isThis("SELECT @@datadir") }
	s.usable(s.install())
	s.usable(s.launch(func() error {
		s.args = append(s.arguments(), o.Args...)
		return nil
	}))
	return s
}

// install makes the data and the file that sets the administrator's password.
func (s *MariaDBServer) install() error {
	path, err := mariadbInstall.find()
	if err != nil {
		return err
	}
	admin := "CREATE OR REPLACE USER root@'127.0.0.1' IDENTIFIED BY 'pw';\nGRANT ALL ON *.* TO root@'127.0.0.1' WITH GRANT OPTION;\n"
	if err := os.WriteFile(s.initFile(), []byte(admin), 0o600); err != nil {
		return err
	}
	return s.prepare(path, append(s.common(), "--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve")...)
}

func (s *MariaDBServer) initFile() string { return filepath.Join(s.dir, "init.sql") }

// common returns the options for making the data and for using them. Servers must not share a
// folder for temporary tables: each removes at its start what it finds there.
func (s *MariaDBServer) common() []string {
	args := []string{"--no-defaults", "--datadir=" + s.data(), "--tmpdir=" + s.dir, "--innodb-log-file-size=32M"}
	if os.Geteuid() == 0 {
		args = append(args, "--user=root")
	}
	return args
}

func (s *MariaDBServer) arguments() []string {
	return append(s.common(),
		"--bind-address=127.0.0.1", "--port="+strconv.Itoa(s.port), "--socket="+filepath.Join(s.dir, "sock"), "--skip-name-resolve",
		"--init-file="+s.initFile(), "--max-connections=500", "--innodb-print-all-deadlocks=ON",
		"--plugin-load-add=sql_errlog", "--sql-error-log-filename=sql_errors.log", "--sql-error-log-size-limit=1G")
}
