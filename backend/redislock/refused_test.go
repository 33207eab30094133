package redislock

import (
	"context"
	"net/url"
	"testing"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/drivertest"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// withdrawal is what an administrator takes away from a user for a moment, and how it is given back.
type withdrawal struct {
	name       string
	take, give []string // rules of ACL SETUSER
}

var withdrawals = []withdrawal{
	{"login", []string{"resetpass", ">another"}, []string{"resetpass", ">pw"}},
	{"account", []string{"off"}, []string{"on"}},
	{"rights", []string{"-@all"}, []string{"+@all"}},
	{"scripts", []string{"-eval", "-evalsha", "-watch"}, []string{"+@all"}},
}

// userURL makes a user of a server who may do all, and returns the user's URL.
func userURL(t *testing.T, query string, servers ...*testserver.RedisServer) (u *url.URL, name string) {
	t.Helper()
	name = "u" + driver.NewOwner()
	for _, srv := range servers {
		mustDo(t, srv, "ACL", "SETUSER", name, "on", ">pw", "~*", "&*", "+@all")
		t.Cleanup(func() { srv.Do("ACL", "DELUSER", name) })
	}
	return &url.URL{Scheme: "redis", User: url.UserPassword(name, "pw"), Host: servers[0].Addr(), RawQuery: query}, name
}

func mustDo(t *testing.T, srv *testserver.RedisServer, args ...string) any {
	t.Helper()
	reply, err := srv.Do(args...)
	if err != nil {
		t.Errorf("%q: %v", args, err)
	}
	return reply
}

// refusedHarness is a user of servers from whom w is taken.
func refusedHarness(w withdrawal, scheme, query string, servers ...*testserver.RedisServer) func(t *testing.T) drivertest.Harness {
	return func(t *testing.T) drivertest.Harness {
		u, name := userURL(t, query, servers...)
		u.Scheme = scheme
		set := func(rules []string) {
			for _, srv := range servers {
				mustDo(t, srv, append([]string{"ACL", "SETUSER", name}, rules...)...)
				mustDo(t, srv, "CLIENT", "KILL", "USER", name)
			}
		}
		return drivertest.Harness{
			Open: func(ctx context.Context) (driver.Backend, error) { return driver.Open(ctx, u.String()) },
			Withdraw: func() func() {
				set(w.take)
				return func() { set(w.give) }
			},
		}
	}
}

// refusedCase is a withdrawal, and a way to keep locks.
type refusedCase struct {
	withdrawal
	query string
}

func (c refusedCase) String() string { return c.query + "/" + c.name }

// What is refused for a moment ends nothing, and leaves nothing, in any way to keep locks.
func TestRefused(t *testing.T) {
	srv := testserver.Redis(t)
	var cases []refusedCase
	for _, query := range []string{"layout=string", "layout=redisson", "scripts=off"} {
		for _, w := range withdrawals {
			cases = append(cases, refusedCase{w, query})
		}
	}
	sideBySide(t, cases, func(t *testing.T, c refusedCase) {
		drivertest.RunRefused(t, refusedHarness(c.withdrawal, "redis", c.query, srv))
	})
}

func TestLongRefusedByACluster(t *testing.T) {
	g := testserver.RedisCluster(t, testserver.RedisOptions{})
	var cases []refusedCase
	for _, w := range withdrawals[:3] {
		cases = append(cases, refusedCase{w, "cluster"})
	}
	sideBySide(t, cases, func(t *testing.T, c refusedCase) {
		drivertest.RunRefused(t, refusedHarness(c.withdrawal, "redis+cluster", "", g.Masters()...))
	})
}
