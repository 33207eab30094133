package redislock

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/distlock/distlock/backend/redislock/internal/redisconn"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/drivertest"
	"github.com/distlock/distlock/internal/testkit/must"
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

// A message that may not be sent does not keep a lock, nor does other data under the keys of its queue.
func TestReleaseNeedsNoMessage(t *testing.T) {
	srv := testserver.Redis(t)
	c := raw(t, srv.Addr())
	for _, o := range []Options{{}, {Layout: Redisson}, {Scripts: ScriptsOff}} {
		u, name := userURL(t, "", srv)
		u.RawQuery = strings.TrimPrefix(ownURL("", o), "redis://?")
		b := openAt(t, u.String(), o)
		r := request("", driver.Exclusive)
		acquire(t, b, r)
		mustDo(t, srv, "ACL", "SETUSER", name, "resetchannels")
		if err := b.Release(t.Context(), r.Hold); driver.Final(err) || errors.Is(err, driver.ErrLost) {
			t.Errorf("%+v: released without a message: %v", o, err)
		}
		if c.Exists(t.Context(), r.Name).Val() > 0 {
			t.Errorf("%+v: without a message it is not released", o)
		}
		mustDo(t, srv, "ACL", "SETUSER", name, "allchannels")
		for i := range b.layout.QueueKeys("") {
			r := request("", driver.Exclusive)
			acquire(t, b, r)
			key := b.layout.QueueKeys(r.Name)[i]
			c.Set(t.Context(), key, "x", 0)
			err := b.Release(t.Context(), r.Hold)
			if c.Del(t.Context(), key); err != nil || c.Exists(t.Context(), r.Name).Val() > 0 {
				t.Errorf("%+v: other data under %s: %v", o, key, err)
			}
		}
	}
}

// A right that a user never had is told at the first attempt, which would wait for ever otherwise; one that is withdrawn
// later is not final.
func TestMissingRightIsToldAtOnce(t *testing.T) {
	t.Parallel()
	srv := testserver.SharedRedis(t)
	for _, query := range []string{"", "layout=redisson", "scripts=off"} {
		u, name := userURL(t, query, srv)
		mustDo(t, srv, "ACL", "SETUSER", name, "resetkeys", "~others:*", "-scan")
		b := openAt(t, u.String(), Options{})
		attempt := func() error {
			_, err := b.Acquire(t.Context(), request("", driver.Exclusive))
			return err
		}
		_, inspect := b.Inspect(t.Context(), "x")
		for what, err := range map[string]error{"acquire": attempt(), "inspect": inspect, "list": b.List(t.Context(), "", func(string) bool { return true })} {
			if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), "docs/backends/redis.md") {
				t.Errorf("%s: %s: a right that is missing: %v; want ErrInvalid", query, what, err)
			}
		}
		mustDo(t, srv, "ACL", "SETUSER", name, "allkeys")
		if err := attempt(); err != nil {
			t.Errorf("%s: with the right: %v", query, err)
		}
		mustDo(t, srv, "ACL", "SETUSER", name, "resetkeys")
		if err := attempt(); err == nil || driver.Final(err) {
			t.Errorf("%s: a right that was withdrawn: %v", query, err)
		}
	}
}

// Whether a server refuses a user, or is busy, is no fact about a lock; and nothing of the command was executed.
func TestRefusalsOfServers(t *testing.T) {
	for text, unsent := range map[string]bool{
		"NOAUTH Authentication required.":                                                 true,
		"WRONGPASS invalid username-password pair or user is disabled.":                   true,
		"NOPERM this user has no permissions to run the 'evalsha' command":                true,
		"NOPERM this user has no permissions to access one of the keys used as arguments": true,
		"BUSY Redis is busy running a script. You can only call SCRIPT KILL.":             true,
		"LOADING Redis is loading the dataset in memory":                                  true,
		"READONLY You can't write against a read only replica.":                           true,
		"ERR max number of clients reached":                                               true,
		"MISCONF Errors writing to the AOF file: No space left on device":                 true,
		"OOM command not allowed when used memory > 'maxmemory'.":                         true,
		"NOREPLICAS Not enough good replicas to write.":                                   true,
		"MISCONF Redis is configured to save RDB snapshots script: 3c, on @user_script:1": false,
		"ERR The user executing the script can't run this command script: 3c":             false,
		"NOPERM User executing the script can't access a key script: 3c":                  false,
		"OOM command not allowed when used memory > 'maxmemory'. script: 3c":              false,
	} {
		for _, opts := range []Options{{}, {Layout: Redisson}, {Scripts: ScriptsOff}} {
			synctest.Test(t, func(t *testing.T) {
				var relay relay
				relay.handle(func([]string, func(...string) redisconn.Answer) redisconn.Answer {
					return redisconn.Answer{Err: &redisconn.ReplyError{Text: text}}
				})
				b, err := newBackend(redisconn.NewSingle("", redisconn.NewServer(redisconn.Options{Dialer: relay.dial})), &opts, 0)
				b = opened(t, b, err)
				b.markWorks()
				r := request("", driver.Exclusive)
				errs := map[string]error{"renew": b.Renew(t.Context(), []driver.Hold{r.Hold})[0], "release": b.Release(t.Context(), r.Hold)}
				_, errs["acquire"] = b.Acquire(t.Context(), r)
				for call, err := range errs {
					if err == nil || driver.Final(err) || errors.Is(err, driver.ErrLost) {
						t.Errorf("%+v: %s: %s: %v", opts, text, call, err)
					}
					// What Store.change asks for at first releases nothing.
					if call != "renew" && opts.Scripts != ScriptsOff && errors.Is(err, driver.ErrUnsent) != unsent {
						t.Errorf("%+v: %s: %s: %v; unsent: %v", opts, text, call, err, !unsent)
					}
				}
				b.Close()
			})
		}
	}
}

// A server without room for another client says so before it reads anything.
func TestTooManyClients(t *testing.T) {
	t.Parallel()
	srv := testserver.Redis(t)
	b := openAt(t, srv.URL(), Options{})
	c := raw(t, srv.Addr()).Conn()
	defer c.Close()
	for _, command := range [][]any{{"CONFIG", "SET", "maxclients", "1"}, {"CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"}} {
		must.OK(t, c.Do(t.Context(), command...).Err())
	}
	_, err := b.Acquire(t.Context(), request("", driver.Exclusive))
	if !errors.Is(err, driver.ErrUnsent) || driver.Final(err) || !strings.Contains(err.Error(), "max number of clients") {
		t.Errorf("no room: %v", err)
	}
	must.OK(t, c.Do(t.Context(), "CONFIG", "SET", "maxclients", "100").Err())
	acquire(t, b, request("", driver.Exclusive))
}
