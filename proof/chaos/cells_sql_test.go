//go:build linux

package chaos

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"net/url"
	"slices"
	"time"

	"github.com/distlock/distlock/internal/testkit/faultproxy"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// database lets workers reach a database through a proxy; where is its URL as the server has it.
func database(s *scene, srv server, where, strategy string) {
	u := must.Get(url.Parse(where))(s)
	q := u.Query()
	q.Set("create", "true")
	q.Set("strategy", strategy)
	u.RawQuery = q.Encode()
	s.direct = u.String()
	key := sha256.Sum256([]byte(hot)) // of the lock's row
	s.text = string(key[:])
	s.server, s.proxy = srv, faultproxy.New(s.T, srv.Addr())
	u.Host = s.proxy.Addr()
	s.url = u.String()
}

func sqlCells() []cell {
	mariadb := deployment{name: "mariadb", title: "MariaDB, rows", ttl: 2 * time.Second, start: mariaDB("row")}
	session := deployment{name: "mariadb-session", title: "MariaDB, connections", ttl: 2 * time.Second, start: mariaDB("session")}
	postgres := deployment{name: "postgres", title: "PostgreSQL, rows", ttl: 2 * time.Second, start: postgreSQL("row")}
	advisory := deployment{name: "postgres-advisory", title: "PostgreSQL, connections", ttl: 2 * time.Second, start: postgreSQL("advisory")}
	replicated := deployment{name: "postgres-standby", title: "PostgreSQL with a standby, rows", ttl: 3 * time.Second, start: postgreSQL("row")}
	return slices.Concat(
		networkCells(mariadb), diskAndClockCells(mariadb), connectionCells(session), []cell{{withClock(session), clockAhead, "clock-ahead", safe}},
		networkCells(postgres), diskAndClockCells(postgres), connectionCells(advisory),
		[]cell{{replicated, promote, "failover", withFences}},
	)
}

// diskAndClockCells returns what leases in rows do when the server's disk is slow or full, and when its clock jumps.
func diskAndClockCells(d deployment) []cell {
	return []cell{
		{withDisk(d), slowDisk, "slow-disk", safe},
		{withDisk(d), fullDiskRestart, "full-disk", safe},
		{withClock(d), clockAhead, "clock-ahead", withFences},
		{withClock(d), clockBehind, "clock-behind", safe},
	}
}

// connectionCells returns faults of locks that live on connections. A cut connection frees a lock whose holder has not
// noticed yet, and a cell need not show this moment: it is some milliseconds.
func connectionCells(d deployment) []cell {
	return []cell{
		{d, killClient, "kill-client", safe},
		{d, pauseServer, "pause-server", safe},
		{d, blackHole, "black-hole", safe},
		{d, delay, "delay", safe},
		{withClock(d), clockBehind, "clock-behind", safe},
	}
}

// promote makes a standby the primary that has not received the last commits.
var promote = fault{"failover that loses commits", 0.2, func(s *scene) func() {
	old := s.server.(*testserver.PostgresServer)
	standby := old.Standby(s.T)
	standby.Exec(s.T, "ALTER SYSTEM SET primary_conninfo = ''", "SELECT pg_reload_conf()")
	s.register.awaitLongHold(10 * s.ttl)
	old.Kill()
	standby.Exec(s.T, "SELECT pg_promote()")
	s.server, s.direct = standby, ""
	s.proxy.Retarget(standby.Addr())
	return nothing
}}

func mariaDB(strategy string) func(*scene) {
	return func(s *scene) {
		srv := testserver.MariaDB(s.T, testserver.MariaDBOptions{})
		where := srv.Database(s.T)
		database(s, srv, where, strategy)
		s.awaitRefusal = refusalOf(s, srv.DB(s.T, where), "CREATE OR REPLACE TABLE filled (i INT)")
	}
}

func postgreSQL(strategy string) func(*scene) {
	return func(s *scene) {
		srv := testserver.Postgres(s.T, testserver.PostgresOptions{})
		database(s, srv, srv.URL(), strategy)
		s.awaitRefusal = refusalOf(s, srv.DB(s.T, srv.URL()), "SELECT pg_logical_emit_message(true, '', '')")
	}
}

// refusalOf waits until a database does not execute a statement that writes.
func refusalOf(s *scene, db *sql.DB, write string) func() {
	return func() {
		s.awaitError(func() error {
			ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
			defer cancel()
			_, err := db.ExecContext(ctx, write)
			return err
		})
	}
}

// networkCells returns what every deployment of one server behind a proxy must survive, and a pause.
func networkCells(d deployment) []cell {
	return []cell{
		{d, killClient, "kill-client", safe},
		{d, pauseClient, "pause-client", withFences},
		{d, killServer, "kill-server", safe},
		{d, bounceServer, "bounce-server", safe},
		{d, pauseServer, "pause-server", safe},
		{d, cutConnections, "cut", safe},
		{d, blackHole, "black-hole", safe},
		{d, delay, "delay", safe},
		{d, loseRequests, "lose-requests", safe},
		{d, loseAnswers, "lose-answers", safe},
		{d, storm, "storm", safe},
	}
}
