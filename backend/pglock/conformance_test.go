package pglock

import (
	"context"
	"database/sql"
	"net/url"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/drivertest"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/faultproxy"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/oddnames"
	"github.com/distlock/distlock/internal/testkit/rights"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// suite runs the conformance suite in parallel with others.
func suite(t *testing.T, h drivertest.Harness) {
	h.Parallel = 4
	drivertest.Run(t, h)
}

func TestConformance(t *testing.T) {
	t.Parallel()
	url := with(t, hasty(t), "create", "true")
	suite(t, drivertest.Harness{Open: func(ctx context.Context) (driver.Backend, error) { return Open(ctx, url) }})
}

// borrower is a backend on a pool of the user's, which is closed afterwards.
type borrower struct {
	*Backend
	end func()
}

func (b *borrower) Close() error {
	defer b.end()
	return b.Backend.Close()
}

func TestLongConformanceOfAUsersDB(t *testing.T) {
	t.Parallel()
	usersDB(t, testserver.SharedPostgres(t))
}

func TestLongConformanceOfAUsersDBOnTheOldest(t *testing.T) {
	t.Parallel()
	usersDB(t, testserver.SharedPostgresVersion(t, "12"))
}

// usersDB runs the suite. Each handle connects through a proxy of its own, which can disconnect it.
func usersDB(t *testing.T, pg *testserver.PostgresServer) {
	url := hastyAt(t, pg)
	var ways faultproxy.Networks
	suite(t, drivertest.Harness{
		Open: func(ctx context.Context) (driver.Backend, error) {
			way := faultproxy.New(t, pg.Addr())
			db, err := sql.Open("pgx", strings.Replace(url, pg.Addr(), way.Addr(), 1))
			if err != nil {
				return nil, err
			}
			db.SetMaxOpenConns(4)
			b, err := New(ctx, db, &Options{Create: true, Name: "postgres://proxied"})
			lent := &borrower{b, func() { db.Close() }}
			ways.Add(lent, way)
			return lent, err
		},
		Cut: ways.Cut, LoseAnswers: ways.LoseAnswers,
	})
}

func TestLongConformanceOfAUsersPool(t *testing.T) {
	t.Parallel()
	usersPool(t, testserver.SharedPostgres(t))
}

func TestLongConformanceOfAUsersPoolOnTheNewest(t *testing.T) {
	t.Parallel()
	usersPool(t, testserver.SharedPostgresVersion(t, "18"))
}

// usersPool runs the suite. A backend needs at least two connections to listen.
func usersPool(t *testing.T, pg *testserver.PostgresServer) {
	url := with(t, hastyAt(t, pg), "pool_max_conns", "2")
	suite(t, drivertest.Harness{Open: func(ctx context.Context) (driver.Backend, error) {
		pool, err := pgxpool.New(ctx, url)
		if err != nil {
			return nil, err
		}
		b, err := NewPool(ctx, pool, &Options{Create: true})
		return &borrower{b, pool.Close}, err
	}})
}

func TestLongConformanceBehindAPooler(t *testing.T) {
	t.Parallel()
	pg := testserver.SharedPostgres(t)
	url := with(t, testserver.PgBouncer(t, pg, testserver.PgBouncerOptions{}).Via(hasty(t)), "create", "true", "pooler", "transaction")
	suite(t, drivertest.Harness{Open: func(ctx context.Context) (driver.Backend, error) { return Open(ctx, url) }})
}

// severable returns a harness whose handles each connect through a proxy that can disconnect them.
func severable(t *testing.T, pg *testserver.PostgresServer, url string) drivertest.Harness {
	var ways faultproxy.Networks
	return drivertest.Harness{
		Open: func(ctx context.Context) (driver.Backend, error) {
			way := faultproxy.New(t, pg.Addr())
			b, err := openNamed(ctx, strings.Replace(url, pg.Addr(), way.Addr(), 1))
			if err != nil {
				return nil, err
			}
			ways.Add(b, way)
			return b, nil
		},
		Cut: ways.Cut, LoseAnswers: ways.LoseAnswers,
	}
}

// openNamed opens a database under the same name on every route to it.
func openNamed(ctx context.Context, rawURL string) (*Backend, error) {
	u, err := driver.ParseURL(rawURL)
	if err != nil {
		return nil, err
	}
	opts, _, err := readOptions(u)
	if err != nil {
		return nil, err
	}
	c, err := newConnector(u, opts, nil)
	if err != nil {
		return nil, err
	}
	opts.Name = "postgres://proxied"
	return start(ctx, &database{db: openPool(c, 0), owned: true}, opts)
}

func TestConformanceOfAdvisory(t *testing.T) {
	t.Parallel()
	pg := testserver.SharedPostgres(t)
	suite(t, severable(t, pg, with(t, hastyAt(t, pg), advisoryParams...)))
}

// The newest version.
func TestLongConformanceOfAdvisoryOnTheNewest(t *testing.T) {
	t.Parallel()
	pg := testserver.SharedPostgresVersion(t, "18")
	suite(t, severable(t, pg, with(t, hastyAt(t, pg), advisoryParams...)))
}

// A version that does not end idle sessions is refused.
func TestLongAdvisoryOnTheOldest(t *testing.T) {
	t.Parallel()
	refused(t, with(t, testserver.SharedPostgresVersion(t, "12").Database(t), advisoryParams...), "PostgreSQL 14 or later", "strategy row")
}

// An attempt or a release whose connection is refused fails with ErrUnsent.
func TestRefusedConnectionsSendNothing(t *testing.T) {
	pg := testserver.SharedPostgres(t)
	for what, params := range map[string][]string{
		"row":      nil,
		"advisory": {"strategy", "advisory"},
	} {
		t.Run(what, func(t *testing.T) {
			p := faultproxy.New(t, pg.Addr())
			b := open(t, strings.Replace(with(t, fresh(t), params...), pg.Addr(), p.Addr(), 1))
			take(t, b, request("x"))
			p.Refuse()
			faultproxy.AwaitUnsent(t, b, func() driver.Request { return request("y") })
			if what == "row" { // a process knows which locks its connections have
				faultproxy.AwaitUnsentRelease(t, b, request("y").Hold)
			}
		})
	}
}

func TestOddNames(t *testing.T) {
	t.Parallel()
	db := testserver.SharedPostgres(t).Database(t)
	for _, strategy := range []string{"row", "advisory"} {
		oddnames.Try(t, open(t, with(t, db, "create", "true", "strategy", strategy)), nil)
	}
}

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
		for kind, params := range kinds {
			if what == "connect" && kind != "row" {
				continue // it is a login that is refused in another way
			}
			t.Run(what+"/"+kind, func(t *testing.T) {
				t.Parallel()
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
			refusal := " " + mustConfig(t, user).User + "@.*(permission denied|not permitted)"
			outlive(t, user, true, func() {
				restore := withdraw()
				eventually(t, "the user is refused", func() bool { return testserver.SharedPostgres(t).CountLogged(refusal) >= 3 })
				restore()
			})
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
	user = pg.User(t, admin, "s3cret", "SELECT, INSERT, UPDATE ON "+table)
	u := must.Get(url.Parse(user))(t)
	db := pg.DB(t, plain)
	name := u.User.Username()
	fill := strings.NewReplacer("{u}", name, "{d}", databaseOf(t, plain), "{t}", table)
	exec := func(statement string) {
		for _, s := range []string{fill.Replace(statement), "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '" + name + "'"} {
			expect.OK(t, expect.Err(db.Exec(s)), s)
		}
	}
	return user, func() (restore func()) {
		exec(w.take)
		return func() { exec(w.give) }
	}
}

// The page's grants are enough for each strategy, and none is too much.
func TestRights(t *testing.T) {
	t.Parallel()
	pg := testserver.SharedPostgres(t)
	for _, strategy := range []string{"row", "advisory"} {
		db := with(t, pg.Database(t), "strategy", strategy)
		open(t, with(t, db, "create", "true"))
		rights.Try(t, rights.Grants(t, "postgres.md", strategy), func(t *testing.T, grants []string) string {
			return pg.User(t, db, "s3cret", forUser(grants)...)
		})
	}
}

// forUser cuts off what names the user of the example.
func forUser(grants []string) (cut []string) {
	for _, g := range grants {
		cut = append(cut, g[:len(g)-len(" TO app")])
	}
	return cut
}
