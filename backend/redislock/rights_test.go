package redislock

import (
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/rights"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// documentedRights returns the rules of the page's example, and the rules in a row of the table below it.
func documentedRights(t *testing.T, row string) (rules []string) {
	t.Helper()
	for _, line := range rights.Example(t, "redis.md", "ACL SETUSER locks ") {
		for _, rule := range strings.Fields(line)[3:] {
			if strings.ContainsAny(rule[:1], "~&+-%") {
				rules = append(rules, rule)
			}
		}
	}
	if row != "" {
		m := regexp.MustCompile(`(?m)^\| ` + regexp.QuoteMeta(row) + ` \| ` + "`(.*)`").FindStringSubmatch(rights.Page(t, "redis.md"))
		if m == nil {
			t.Fatalf("redis.md has no row %s", row)
		}
		rules = append(rules, strings.Fields(m[1])...)
	}
	return rules
}

// aclUser makes users with rules, and returns how they reach the server.
func aclUser(srv *testserver.RedisServer, query string) func(t *testing.T, rules []string) string {
	return func(t *testing.T, rules []string) string {
		t.Helper()
		name := "u" + driver.NewOwner()
		must.Get(srv.Do(append([]string{"ACL", "SETUSER", name, "on", ">pw"}, rules...)...))(t)
		t.Cleanup(func() { srv.Do("ACL", "DELUSER", name) })
		return (&url.URL{Scheme: "redis", User: url.UserPassword(name, "pw"), Host: srv.Addr(), RawQuery: "prefix=app:&timeout=2m" + query}).String()
	}
}

// The documented user can do all, and needs each right.
func TestRights(t *testing.T) {
	t.Parallel()
	srv := testserver.Redis(t)
	rights.Try(t, documentedRights(t, ""), aclUser(srv, ""))
	withoutStreams := slices.DeleteFunc(documentedRights(t, ""), func(rule string) bool { return rule == "+xadd" })
	err := rights.Tour(t.Context(), aclUser(srv, "")(t, withoutStreams))
	if err == nil || !strings.Contains(err.Error(), "docs/backends/redis.md") || driver.Final(err) {
		t.Errorf("a script that may not do all: %v", err)
	}
	for row, query := range map[string]string{"`layout=redisson`": "&layout=redisson", "the end of a subscription, before that of its connection": ""} {
		rights.Suffice(t, documentedRights(t, row), aclUser(srv, query))
	}
}

// The documented user reaches keys with the prefix, and no other key: not a lock's whose prefix ends like it.
func TestRightsReachNoOtherKey(t *testing.T) {
	t.Parallel()
	srv := testserver.SharedRedis(t)
	u := must.Get(url.Parse(aclUser(srv, "")(t, documentedRights(t, "`layout=redisson`"))))(t)
	conn := raw(t, srv.Addr()).Conn()
	defer conn.Close()
	password, _ := u.User.Password()
	must.OK(t, conn.Do(t.Context(), "AUTH", u.User.Username(), password).Err())
	for _, key := range []string{"myapp:x", "x", "{myapp:x}:timeout", "distlock_line:{myapp:x}", "distlock_line::myapp:x", "redisson_lock_queue:{myapp:x}", "distlock:fence"} {
		if err := conn.Do(t.Context(), "EXISTS", key).Err(); err == nil || !strings.HasPrefix(err.Error(), "NOPERM") {
			t.Errorf("the key %s: %v", key, err)
		}
	}
	for _, channel := range []string{"distlock_free:{myapp:x}", "redisson_sc:{myapp:x}", "x"} {
		if err := conn.Do(t.Context(), "PUBLISH", channel, "m").Err(); err == nil || !strings.HasPrefix(fmt.Sprint(err), "NOPERM") {
			t.Errorf("the channel %s: %v", channel, err)
		}
	}
}
