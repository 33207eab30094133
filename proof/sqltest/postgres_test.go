package sqltest

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
	"github.com/jackc/pgx/v5/pgconn"
	_ "github.com/jackc/pgx/v5/stdlib" // testserver does not import the driver
)

// sqlState returns the code of a PostgreSQL error.
func sqlState(err error) string {
	var answer *pgconn.PgError
	if errors.As(err, &answer) {
		return answer.Code
	}
	return ""
}

func TestPostgresKeepsItsDataOverAKill(t *testing.T) {
	s := testserver.Postgres(t, testserver.PostgresOptions{Settings: []string{"work_mem=8MB"}})
	database := s.Database(t)
	must.OK(t, execute(t, s.SQLServer, database, "CREATE TABLE kept (v int)", "INSERT INTO kept VALUES (42)"))
	open := s.DB(t, database)
	must.OK(t, open.PingContext(t.Context()))
	s.Kill()
	if err := execute(t, s.SQLServer, s.URL(), "SELECT 1"); err == nil {
		t.Fatal("a killed server answers")
	}
	s.Start()
	var v int
	if err := s.DB(t, database).QueryRowContext(t.Context(), "SELECT v FROM kept").Scan(&v); err != nil || v != 42 {
		t.Errorf("after the restart: %d, %v", v, err)
	}
	expect.Equal(t, s.Ask(t, "SHOW work_mem"), "8MB", "the further setting")
	s.Stop()
	s.Start()
}

func TestPausedPostgresIsSilent(t *testing.T) {
	s := testserver.Postgres(t, testserver.PostgresOptions{})
	db := s.DB(t, s.URL())
	must.OK(t, db.PingContext(t.Context()))
	s.Pause()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	expect.Be(t, db.PingContext(ctx), context.DeadlineExceeded, "a connection of a paused server")
	s.Resume()
	expect.OK(t, db.PingContext(t.Context()), "after the pause")
}

func TestPostgresUsers(t *testing.T) {
	s := testserver.SharedPostgres(t)
	database := s.Database(t)
	must.OK(t, execute(t, s.SQLServer, database, "CREATE TABLE seen (v int)"))
	user := s.User(t, database, "se:cret", "SELECT ON ALL TABLES IN SCHEMA public")
	expect.OK(t, execute(t, s.SQLServer, user, "SELECT * FROM seen"))
	if err := execute(t, s.SQLServer, user, "INSERT INTO seen VALUES (1)"); sqlState(err) != "42501" {
		t.Errorf("a write that is not granted: %v", err)
	}
	s.Expire(t, user)
	if err := execute(t, s.SQLServer, user, "SELECT * FROM seen"); sqlState(err) != "28P01" {
		t.Errorf("a password that has expired: %v", err)
	}
	expect.Equal(t, s.CountLogged(nameOf(user)+"@.* 42501 ERROR:  permission denied for table seen"), 1, "the server logged the error")
}

func TestLongPostgresThatIsOnlyRead(t *testing.T) {
	s := testserver.Postgres(t, testserver.PostgresOptions{Settings: []string{"default_transaction_read_only=on"}})
	const write = "CREATE TABLE refused (v int)"
	if err := execute(t, s.SQLServer, s.URL(), write); sqlState(err) != "25006" {
		t.Errorf("a write: %v", err)
	}
	standby := s.Standby(t)
	if err := execute(t, standby.SQLServer, standby.URL(), write); sqlState(err) != "25006" {
		t.Errorf("a write to a standby: %v", err)
	}
	expect.Equal(t, standby.Ask(t, "SELECT pg_is_in_recovery()::text"), "true", "a standby in recovery")
}

func TestPgBouncer(t *testing.T) {
	pg := testserver.SharedPostgres(t)
	database := pg.Database(t)
	user := pg.User(t, database, "secret")
	for mode, shares := range map[string]bool{"transaction": true, "session": false} {
		t.Run(mode, func(t *testing.T) {
			pool := testserver.PgBouncer(t, pg, testserver.PgBouncerOptions{Mode: mode})
			a, b := pool.DB(t, pool.Via(user)), pool.DB(t, pool.Via(user))
			one := must.Get(a.Conn(t.Context()))(t)
			defer one.Close()
			var first, other int
			must.OK(t, one.QueryRowContext(t.Context(), "SELECT pg_backend_pid()").Scan(&first))
			must.OK(t, b.QueryRowContext(t.Context(), "SELECT pg_backend_pid()").Scan(&other))
			if (first == other) != shares {
				t.Errorf("two clients have the processes %d and %d", first, other)
			}
		})
	}
}

func TestLongOtherVersionsOfPostgres(t *testing.T) {
	for _, version := range []string{"12", "18"} {
		t.Run(version, func(t *testing.T) {
			s := testserver.SharedPostgresVersion(t, version)
			if other := testserver.SharedPostgresVersion(t, version); s != other {
				t.Errorf("two shared servers: %s, %s", s.Addr(), other.Addr())
			}
			if got := s.Ask(t, "SHOW server_version"); !strings.HasPrefix(got, version+".") {
				t.Errorf("version %s", got)
			}
			expect.OK(t, execute(t, s.SQLServer, s.Database(t), "CREATE TABLE made (v int)"))
		})
	}
}
