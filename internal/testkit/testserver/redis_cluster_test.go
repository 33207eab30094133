package testserver

import (
	"strings"
	"testing"
	"time"
)

func must(t *testing.T, s *RedisServer, args ...string) any {
	t.Helper()
	reply, err := s.Do(args...)
	if err != nil {
		t.Fatalf("%v: %v", args, err)
	}
	return reply
}

// logins are the ways in which a deployment asks who one is.
var logins = map[string]RedisOptions{
	"open":     {},
	"password": {Password: "s3cret", SentinelPassword: "sentinels"},
	"user tls": {User: "bob", Password: "s3cret", SentinelPassword: "sentinels", TLS: true},
}

func TestSentinelFailsOver(t *testing.T) {
	t.Parallel()
	sentinelFailsOver(t, logins["open"])
}

func TestLongSentinelFailsOver(t *testing.T) { withLogins(t, sentinelFailsOver) }

// withLogins runs a test for each way of logging in.
func withLogins(t *testing.T, test func(*testing.T, RedisOptions)) {
	for _, name := range []string{"password", "user tls"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, logins[name])
		})
	}
}

func sentinelFailsOver(t *testing.T, o RedisOptions) {
	start := time.Now()
	g := RedisSentinel(t, o)
	t.Logf("started in %v", time.Since(start))
	old := g.Master()
	if old != g.Members()[0] || len(g.Followers()) != 2 || len(g.Addrs()) != 3 {
		t.Errorf("master %s, replicas %v, sentinels %v", old.Addr(), g.Followers(), g.Addrs())
	}
	must(t, old, "SET", "k", "v")
	must(t, old, "WAIT", "2", "60000")
	start = time.Now()
	old.Kill()
	now := g.AwaitFailover(old)
	t.Logf("failover in %v", time.Since(start))
	if now == old || g.Master() != now {
		t.Errorf("after the failover %s is the master, was %s", now.Addr(), old.Addr())
	}
	if v := must(t, now, "GET", "k"); v != "v" {
		t.Errorf("GET k: %v", v)
	}
	must(t, now, "SET", "k", "w")
}

func TestLongSentinelFailsOverInPeace(t *testing.T) {
	t.Parallel()
	g := RedisSentinel(t, RedisOptions{})
	old := g.Master()
	if now := g.Failover(); now == old {
		t.Errorf("%s stays the master", now.Addr())
	}
}

func TestCluster(t *testing.T) {
	t.Parallel()
	cluster(t, logins["open"])
}

func TestLongCluster(t *testing.T) { withLogins(t, cluster) }

func cluster(t *testing.T, o RedisOptions) {
	start := time.Now()
	g := RedisCluster(t, o)
	t.Logf("started in %v", time.Since(start))
	clusterMovesSlots(t, g)
	clusterFailsOver(t, g)
}

func clusterMovesSlots(t *testing.T, g *RedisClusterGroup) {
	from := g.NodeOf("{k}1")
	to := g.Masters()[0]
	if to == from {
		to = g.Masters()[1]
	}
	must(t, from, "MSET", "{k}1", "a", "{k}2", "b", "{k}3", "c")
	m := g.StartMove(g.Slot("k"), to)
	m.Keys("{k}1")
	for want, args := range map[string][]string{
		"ASK": {"GET", "{k}1"}, "TRYAGAIN": {"MGET", "{k}1", "{k}2"},
	} {
		if _, err := from.Do(args...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v half-way: %v, want %s", args, err, want)
		}
	}
	if v := must(t, from, "GET", "{k}2"); v != "b" {
		t.Errorf("a key that hasn't moved: %v", v)
	}
	m.Finish()
	if g.NodeOf("{k}1") != to || must(t, to, "GET", "{k}2") != "b" {
		t.Errorf("the slot is at %s, want %s", g.NodeOf("{k}1").Addr(), to.Addr())
	}
	if _, err := from.Do("GET", "{k}2"); err == nil || !strings.Contains(err.Error(), "MOVED") {
		t.Errorf("the old owner says %v", err)
	}
	g.StartMove(g.Slot("k"), from).Cancel()
	if v := must(t, to, "GET", "{k}9"); v != nil {
		t.Errorf("a cancelled move goes on: %v", v)
	}
}

func clusterFailsOver(t *testing.T, g *RedisClusterGroup) {
	old := g.NodeOf("k")
	must(t, old, "SET", "k", "v")
	must(t, old, "WAIT", "1", "60000")
	start := time.Now()
	old.Kill()
	now := g.AwaitFailover(old)
	t.Logf("failover in %v", time.Since(start))
	if v := must(t, now, "GET", "k"); v != "v" || g.NodeOf("k") != now {
		t.Errorf("k is %v at %s, want v at %s", v, g.NodeOf("k").Addr(), now.Addr())
	}
	old.Start()
	g.AwaitReady()
	if back := g.Failover(now); back != old || must(t, old, "GET", "k") != "v" {
		t.Errorf("%s took over from %s", back.Addr(), now.Addr())
	}
}

func TestLongSharedGroups(t *testing.T) {
	t.Parallel()
	if a, b := SharedRedisCluster(t), SharedRedisCluster(t); a.Members()[0] != b.Members()[0] {
		t.Error("two shared clusters")
	}
	if a, b := SharedRedisSentinel(t), SharedRedisSentinel(t); a.Master() != b.Master() {
		t.Error("two shared sentinel deployments")
	}
}
