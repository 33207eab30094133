package sqltest

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
	"github.com/go-sql-driver/mysql"
)

// execute runs statements one after the other.
func execute(t *testing.T, s *testserver.SQLServer, url string, statements ...string) error {
	t.Helper()
	db := s.DB(t, url)
	for _, statement := range statements {
		if _, err := db.ExecContext(t.Context(), statement); err != nil {
			return err
		}
	}
	return nil
}

// mysqlNumber returns the number of a MySQL error.
func mysqlNumber(err error) uint16 {
	var answer *mysql.MySQLError
	if errors.As(err, &answer) {
		return answer.Number
	}
	return 0
}

func TestMariaDBKeepsItsDataOverAKill(t *testing.T) {
	s := testserver.MariaDB(t, testserver.MariaDBOptions{})
	database := s.Database(t)
	if !strings.HasPrefix(database, "mysql://root:pw@"+s.Addr()+"/") {
		t.Errorf("URL %q", database)
	}
	db := s.DB(t, database)
	must.OK(t, execute(t, s.SQLServer, database, "CREATE TABLE kept (v INT)", "INSERT INTO kept VALUES (42)"))
	s.Kill()
	if err := execute(t, s.SQLServer, s.URL(), "SELECT 1"); err == nil {
		t.Fatal("a killed server answers")
	}
	s.Start()
	var v int
	if err := db.QueryRowContext(t.Context(), "SELECT v FROM kept").Scan(&v); err != nil || v != 42 {
		t.Errorf("after the restart: %d, %v", v, err)
	}
	s.Stop()
	s.Start()
}

func TestMariaDBUsers(t *testing.T) {
	s := testserver.SharedMariaDB(t)
	database := s.Database(t)
	s.Exec(t, "CREATE TABLE "+databaseOf(database)+".seen (v INT)")
	user := s.User(t, database, "se:cret", "SELECT ON "+databaseOf(database)+".*")
	expect.OK(t, execute(t, s.SQLServer, user, "SELECT * FROM seen"))
	if err := execute(t, s.SQLServer, user, "INSERT INTO seen VALUES (1)"); mysqlNumber(err) != 1142 {
		t.Errorf("a write that is not granted: %v", err)
	}
	s.Expire(t, user)
	if err := execute(t, s.SQLServer, user, "SELECT * FROM seen"); mysqlNumber(err) != 1820 {
		t.Errorf("a password that has expired: %v", err)
	}
	errs := s.SQLErrors()
	if !slices.ContainsFunc(errs, func(line string) bool { return strings.Contains(line, "ERROR 1142") }) {
		t.Errorf("the server did not log the error: %q", errs)
	}
}

func TestMariaDBReadOnly(t *testing.T) {
	s := testserver.MariaDB(t, testserver.MariaDBOptions{Args: []string{"--read-only=ON", "--lower-case-table-names=1"}})
	database := s.Database(t)
	user := s.User(t, database, "pw", "ALL ON "+databaseOf(database)+".*")
	if err := execute(t, s.SQLServer, user, "CREATE TABLE refused (v INT)"); mysqlNumber(err) != 1290 {
		t.Errorf("a write: %v", err)
	}
	expect.Equal(t, s.Ask(t, "SELECT @@lower_case_table_names"), "1", "the further option")
}

// databaseOf returns the name of a URL's database.
func databaseOf(databaseURL string) string {
	_, name, _ := strings.Cut(strings.TrimPrefix(databaseURL, "mysql://"), "/")
	return name
}
