package sqltest

import (
	"context"
	"database/sql"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/distlock/distlock/backend/mysqllock"
	"github.com/distlock/distlock/backend/pglock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// kind is a kind of database, with the statements that the tests send to its server.
type kind struct {
	name   string
	shared func(tb testing.TB) *server
	own    func(tb testing.TB) *server

	// open opens a backend on the test's pool.
	open func(ctx context.Context, db *sql.DB, query url.Values) (driver.Backend, error)

	connections string // counts a user's
	kill        string // ends all of them
	killIdle    string // ends idle ones
	killStuck   string // ends those that wait to write for an owner
	anyOne      string // selects one of them
	killOne     string
	stall       []string // delays an owner's writes to a table until the connection that executes this ends
	blocked     string   // counts the connections that are executing a statement
	stuck       string   // counts the connections that have been executing one for long
	deadlocks   string   // counts the whole server's
}

// server is a database server.
type server struct {
	*testserver.SQLServer
	database func(tb testing.TB) string
	user     func(tb testing.TB, database string) string
	errors   func(user string) []string // sent to a user
}

var mariaDB = &kind{
	name:   "MariaDB",
	shared: func(tb testing.TB) *server { return asMariaDB(testserver.SharedMariaDB(tb)) },
	own: func(tb testing.TB) *server {
		return asMariaDB(testserver.MariaDB(tb, testserver.MariaDBOptions{}))
	},
	open:        openMySQL,
	connections: "SELECT COUNT(*) FROM information_schema.processlist WHERE user = '%s'",
	kill:        "KILL USER %s",
	killIdle:    "BEGIN NOT ATOMIC FOR c IN (SELECT id FROM information_schema.processlist WHERE user = '%s' AND command = 'Sleep') DO KILL c.id; END FOR; END",
	killStuck:   "BEGIN NOT ATOMIC FOR c IN (SELECT id FROM information_schema.processlist WHERE info LIKE 'DO GET_LOCK(''stall/%[2]s%%') DO KILL c.id; END FOR; END",
	anyOne:      "SELECT id FROM information_schema.processlist WHERE user = '%s' ORDER BY RAND() LIMIT 1",
	killOne:     "KILL %s",
	stall: []string{
		"DO GET_LOCK('stall/%[2]s', 0)",
		"CREATE TRIGGER stall BEFORE INSERT ON %[1]s FOR EACH ROW BEGIN IF NEW.owner = '%[2]s' THEN DO GET_LOCK('stall/%[2]s', 60), RELEASE_LOCK('stall/%[2]s'); END IF; END",
	},
	blocked:   "SELECT COUNT(*) FROM information_schema.processlist WHERE user = '%s' AND command IN ('Query', 'Execute')",
	stuck:     "SELECT COUNT(*) FROM information_schema.processlist WHERE (user = '%s' OR info LIKE 'DO GET_LOCK(''stall/%%') AND command IN ('Query', 'Execute') AND time_ms > 300", // a trigger's user is its definer
	deadlocks: "SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS WHERE VARIABLE_NAME = 'Innodb_deadlocks'",
}

var postgreSQL = &kind{
	name:   "PostgreSQL",
	shared: func(tb testing.TB) *server { return asPostgres(testserver.SharedPostgres(tb)) },
	own: func(tb testing.TB) *server {
		return asPostgres(testserver.Postgres(tb, testserver.PostgresOptions{}))
	},
	open:        openPostgres,
	connections: "SELECT COUNT(*) FROM pg_stat_activity WHERE usename = '%s'",
	blocked:     "SELECT COUNT(*) FROM pg_stat_activity WHERE usename = '%s' AND state = 'active'",
	kill:        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '%s'",
	killIdle:    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '%s' AND state <> 'active'",
	killStuck:   "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '%[1]s' AND '%[2]s' <> ''",
	anyOne:      "SELECT pid FROM pg_stat_activity WHERE usename = '%s' ORDER BY random() LIMIT 1",
	killOne:     "SELECT pg_terminate_backend(%s)",
	stall: []string{
		"SELECT pg_advisory_lock(1, hashtext('%[2]s'))",
		"CREATE FUNCTION stall() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN IF NEW.owner = ''%[2]s'' THEN PERFORM pg_advisory_xact_lock(1, hashtext(''%[2]s'')); END IF; RETURN NEW; END'",
		"CREATE TRIGGER stall BEFORE INSERT ON %[1]s FOR EACH ROW EXECUTE FUNCTION stall()",
	},
	stuck:     "SELECT COUNT(*) FROM pg_stat_activity WHERE usename = '%s' AND state = 'active' AND clock_timestamp() - query_start > interval '300 ms'",
	deadlocks: "SELECT SUM(deadlocks) FROM pg_stat_database",
}

func asMariaDB(s *testserver.MariaDBServer) *server {
	return &server{
		SQLServer: s.SQLServer, database: s.Database,
		user: func(tb testing.TB, database string) string { return s.User(tb, database, "pw", "ALL ON *.*") },
		errors: func(user string) []string {
			return matching(s.SQLErrors(), ` `+user+`\[.* ERROR (1062|1205|1213|1020)\b`)
		},
	}
}

func asPostgres(s *testserver.PostgresServer) *server {
	return &server{
		SQLServer: s.SQLServer, database: s.Database,
		user: func(tb testing.TB, database string) string {
			u := s.User(tb, database, "pw")
			s.Exec(tb, "ALTER ROLE "+nameOf(u)+" SUPERUSER")
			return u
		},
		errors: func(user string) []string {
			return matching(strings.Split(s.ErrorLog(), "\n"), ` `+user+`@\w+ (23505|40P01|40001|55P03) `)
		},
	}
}

// matching returns the lines that a regular expression matches.
func matching(lines []string, pattern string) (found []string) {
	re := regexp.MustCompile(pattern)
	for _, line := range lines {
		if re.MatchString(line) {
			found = append(found, line)
		}
	}
	return found
}

// nameOf returns the user in a URL.
func nameOf(rawURL string) string {
	u, err := url.Parse(rawURL)
	if err != nil {
		panic(err)
	}
	return u.User.Username()
}

func openMySQL(ctx context.Context, db *sql.DB, q url.Values) (driver.Backend, error) {
	return mysqllock.New(ctx, db, &mysqllock.Options{Strategy: mysqllock.Strategy(q.Get("strategy"))})
}

func openPostgres(ctx context.Context, db *sql.DB, q url.Values) (driver.Backend, error) {
	return pglock.New(ctx, db, &pglock.Options{Strategy: pglock.Strategy(q.Get("strategy"))})
}
