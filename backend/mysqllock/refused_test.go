package mysqllock

import (
	"context"
	"net/url"
	"strings"
	"testing"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/drivertest"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// withdrawals are what an administrator takes away from a user for a moment, and how it is given back. {u} is the user, {d}
// the database.
var withdrawals = map[string]struct{ take, give string }{
	"rights": {"REVOKE ALL ON {d}.* FROM {u}", "GRANT ALL ON {d}.* TO {u}"},
	"writes": {"REVOKE INSERT, UPDATE ON {d}.* FROM {u}", "GRANT INSERT, UPDATE ON {d}.* TO {u}"},
	"login":  {"ALTER USER {u} IDENTIFIED BY 'another'", "ALTER USER {u} IDENTIFIED BY '" + secret + "'"},
}

// What the server refuses at run time because of who asks ends nothing for good, and leaves nothing.
func TestConformanceWithARefusedUser(t *testing.T) {
	t.Parallel()
	for _, s := range []Strategy{Row, ForUpdate, Session} {
		for what, w := range withdrawals {
			if s != Row && what == "writes" {
				continue
			}
			t.Run(string(s)+"/"+what, func(t *testing.T) {
				drivertest.RunRefused(t, func(t *testing.T) drivertest.Harness {
					user, admin := userOf(t, s)
					fill := func(text string) string {
						return strings.NewReplacer("{u}", admin.user, "{d}", admin.database).Replace(text)
					}
					return drivertest.Harness{
						Open: func(ctx context.Context) (driver.Backend, error) { return Open(ctx, user) },
						Withdraw: func() (restore func()) {
							admin.do(fill(w.take), "KILL USER "+admin.user)
							return func() { admin.do(fill(w.give)) }
						},
					}
				})
			})
		}
	}
}

// administrator changes a user.
type administrator struct {
	user     string // as in statements
	database string
	do       func(statements ...string)
}

// userOf makes a user in a database of its own, and returns the user's URL.
func userOf(t *testing.T, s Strategy) (string, administrator) {
	t.Helper()
	srv := testserver.SharedMariaDB(t)
	plain := srv.Database(t)
	query := "?strategy=" + string(s)
	a := administrator{database: databaseOf(t, plain), do: func(statements ...string) { srv.Exec(t, statements...) }}
	connect(t, plain+query+"&create=true")
	rawURL := srv.User(t, plain, secret, "ALL ON "+a.database+".*")
	u, err := url.Parse(rawURL)
	if err != nil {
		t.Fatal(err)
	}
	a.user = u.User.Username() + "@'%'"
	return rawURL + query, a
}
