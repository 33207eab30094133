package mysqllock

import (
	"context"
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/drivertest"
	"github.com/distlock/distlock/internal/testkit/faultproxy"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/oddnames"
	"github.com/distlock/distlock/internal/testkit/rights"
	"github.com/distlock/distlock/internal/testkit/testcert"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

func TestMain(m *testing.M) { os.Exit(testserver.Run(m)) }

// conform runs the suite on a strategy, in a new database. Each connection uses its own proxy.
func conform(t *testing.T, s Strategy) {
	t.Helper()
	u := must.Get(url.Parse(testserver.SharedMariaDB(t).Database(t) + "?create=true&strategy=" + string(s)))(t)
	var proxies faultproxy.Networks
	h := drivertest.Harness{
		Parallel: 4, // while other suites run
		Open: func(ctx context.Context) (driver.Backend, error) {
			p := faultproxy.New(t, u.Host)
			proxied := *u
			proxied.Host = p.Addr()
			b, err := Open(ctx, proxied.String())
			if err != nil {
				return nil, err
			}
			proxies.Add(b, p)
			return b, nil
		},
		Cut: proxies.Cut, LoseAnswers: proxies.LoseAnswers,
	}
	drivertest.Run(t, h)
}

func TestConformanceOfRow(t *testing.T) {
	t.Parallel()
	conform(t, Row)
}

// An attempt or a release whose connection is refused fails with ErrUnsent.
func TestRefusedConnectionsSendNothing(t *testing.T) {
	for _, s := range Strategies() {
		t.Run(string(s), func(t *testing.T) {
			u := must.Get(url.Parse(testserver.SharedMariaDB(t).Database(t) + "?create=true&strategy=" + string(s)))(t)
			p := faultproxy.New(t, u.Host)
			u.Host = p.Addr()
			b := connect(t, u.String())
			take(t, b, request("x", long))
			p.Refuse()
			faultproxy.AwaitUnsent(t, b, func() driver.Request { return request("y", long) })
			if s == Row { // a process knows which locks its connections have
				faultproxy.AwaitUnsentRelease(t, b, request("y", long).Hold)
			}
		})
	}
}

func TestOddNames(t *testing.T) {
	t.Parallel()
	admin := testserver.SharedMariaDB(t).Database(t)
	for _, strategy := range Strategies() {
		oddnames.Try(t, connect(t, admin+"?create=true&strategy="+string(strategy)), nil)
	}
}

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
				t.Parallel()
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
	u := must.Get(url.Parse(rawURL))(t)
	a.user = u.User.Username() + "@'%'"
	return rawURL + query, a
}

// The page's grants are enough for each strategy, and none is too much.
func TestRights(t *testing.T) {
	t.Parallel()
	srv := testserver.SharedMariaDB(t)
	for _, strategy := range Strategies() {
		admin := srv.Database(t)
		query := "?strategy=" + string(strategy)
		connect(t, admin+query+"&create=true")
		rights.Try(t, rights.Grants(t, "mysql.md", string(strategy)), func(t *testing.T, grants []string) string {
			var own []string
			for _, g := range grants {
				own = append(own, strings.TrimSuffix(strings.Replace(g, " ON app.", " ON "+databaseOf(t, admin)+".", 1), " TO app"))
			}
			return srv.User(t, admin, "secret", own...) + query
		})
	}
}

func TestCertificates(t *testing.T) {
	t.Parallel()
	own := must.Get(testcert.Own())(t)
	dir := t.TempDir()
	ca := own.Files(t).Cert
	f := must.Get(own.Write(dir))(t)
	srv := testserver.MariaDB(t, testserver.MariaDBOptions{Args: []string{"--ssl-ca=" + ca, "--ssl-cert=" + f.Cert, "--ssl-key=" + f.Key}})
	u := must.Get(url.Parse(srv.Database(t)))(t)
	u.User, u.RawQuery = url.UserPassword("certified", "s3cret"), "tls=true&create=true&timeout=2m"
	srv.Exec(t, "CREATE USER certified@'%' IDENTIFIED BY 's3cret' REQUIRE X509", "GRANT ALL ON "+u.Path[1:]+".* TO certified@'%'")
	testcert.Try(t, testcert.Server{Show: func(t *testing.T, shown testcert.Pair, _ bool) string {
		must.Get(shown.Write(dir))(t)
		srv.Exec(t, "FLUSH SSL")
		return u.String()
	}})
}
