package pglock

import (
	"context"
	"net/url"
	"strings"
	"testing"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/drivertest"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// withdrawal is what an administrator takes away from a user for a moment. {u} is the user, {d} the database, {t} the table.
type withdrawal struct{ take, give string }

var withdrawals = map[string]withdrawal{
	"login":   {"ALTER ROLE {u} NOLOGIN", "ALTER ROLE {u} LOGIN"},
	"rights":  {"REVOKE INSERT, UPDATE ON {t} FROM {u}", "GRANT INSERT, UPDATE ON {t} TO {u}"},
	"connect": {"REVOKE CONNECT ON DATABASE {d} FROM PUBLIC", "GRANT CONNECT ON DATABASE {d} TO PUBLIC"},
}

func TestConformanceWithARefusedUser(t *testing.T) {
	t.Parallel()
	for what, w := range withdrawals {
		for kind, params := range map[string][]string{"row": nil, "session": levels["session"], "transaction": levels["transaction"]} {
			if what == "connect" && kind != "row" {
				continue // it is a login that is refused in another way
			}
			t.Run(what+"/"+kind, func(t *testing.T) {
				drivertest.RunRefused(t, func(t *testing.T) drivertest.Harness {
					user, withdraw := withdrawable(t, w, params)
					return drivertest.Harness{
						Open:     func(ctx context.Context) (driver.Backend, error) { return Open(ctx, user) },
						Withdraw: withdraw,
					}
				})
			})
		}
	}
}

// What is taken away from the user for a moment ends nothing: a holder keeps its lock, a waiter waits, a leader leads and a candidate
// stays one.
func TestWithdrawalsEndNothing(t *testing.T) {
	t.Parallel()
	for what, w := range withdrawals {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			user, withdraw := withdrawable(t, w, nil)
			c := newCrew(t, user)
			restore := withdraw()
			refusal := " " + mustConfig(t, user).User + "@.*(permission denied|not permitted)"
			eventually(t, "the user is refused", func() bool { return testserver.SharedPostgres(t).CountLogged(refusal) >= 3 })
			restore()
			c.goesOn(t, true)
		})
	}
}

// withdrawable returns the URL of a user of its own, and what takes something away from that user.
func withdrawable(t *testing.T, w withdrawal, params []string) (user string, withdraw func() (restore func())) {
	t.Helper()
	pg := testserver.SharedPostgres(t)
	plain := pg.Database(t)
	admin := with(t, plain, append([]string{"create", "true"}, params...)...)
	table := open(t, admin).database.opts.Table
	user = pg.User(t, admin, "secret", "SELECT, INSERT, UPDATE ON "+table)
	u, err := url.Parse(user)
	if err != nil {
		t.Fatal(err)
	}
	db := pg.DB(t, plain)
	name := u.User.Username()
	fill := strings.NewReplacer("{u}", name, "{d}", databaseOf(t, plain), "{t}", table)
	exec := func(statement string) {
		for _, s := range []string{fill.Replace(statement), "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '" + name + "'"} {
			if _, err := db.Exec(s); err != nil {
				t.Errorf("%s: %v", s, err)
			}
		}
	}
	return user, func() (restore func()) {
		exec(w.take)
		return func() { exec(w.give) }
	}
}
