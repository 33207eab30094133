package served

import (
	"context"
	"net/url"
	"strings"
	"testing"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/drivertest"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// A server whose database refuses its user, by its login.
func TestRefusedByTheDatabase(t *testing.T) {
	t.Parallel()
	for what, account := range map[string]func(t *testing.T) (address string, withdraw, restore func()){
		"PostgreSQL": accountOfPostgres, "MariaDB": accountOfMariaDB,
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			drivertest.RunRefused(t, func(t *testing.T) drivertest.Harness {
				address, withdraw, restore := account(t)
				p := start(t, func() driver.Backend { return open(t, address) })
				return drivertest.Harness{
					Open: func(ctx context.Context) (driver.Backend, error) { return driver.Open(ctx, p.url()) },
					Withdraw: func() func() {
						withdraw()
						return restore
					},
				}
			})
		})
	}
}

func accountOfPostgres(t *testing.T) (address string, withdraw, restore func()) {
	pg := testserver.SharedPostgres(t)
	plain := pg.Database(t)
	open(t, plain+and(plain)+"create=true")
	address = pg.User(t, plain, "secret", "SELECT, INSERT, UPDATE ON distlock_locks")
	name := userIn(t, address)
	db := pg.DB(t, plain)
	do := func(statements ...string) {
		for _, s := range statements {
			expect.OK(t, expect.Err(db.Exec(s)), s)
		}
	}
	end := "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '" + name + "'"
	return address, func() { do("ALTER ROLE "+name+" NOLOGIN", end) }, func() { do("ALTER ROLE " + name + " LOGIN") }
}

func accountOfMariaDB(t *testing.T) (address string, withdraw, restore func()) {
	srv := testserver.SharedMariaDB(t)
	plain := srv.Database(t)
	open(t, plain+and(plain)+"create=true")
	u := must.Get(url.Parse(plain))(t)
	address = srv.User(t, plain, "secret", "ALL ON "+strings.TrimPrefix(u.Path, "/")+".*")
	name := userIn(t, address) + "@'%'"
	return address, func() {
			srv.Exec(t, "ALTER USER "+name+" IDENTIFIED BY 'another'", "KILL USER "+name)
		}, func() {
			srv.Exec(t, "ALTER USER "+name+" IDENTIFIED BY 'secret'")
		}
}

func userIn(t *testing.T, address string) string {
	u := must.Get(url.Parse(address))(t)
	return u.User.Username()
}

// and returns what goes before another parameter.
func and(address string) string {
	if strings.Contains(address, "?") {
		return "&"
	}
	return "?"
}
