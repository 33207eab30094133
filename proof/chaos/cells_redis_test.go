//go:build linux

package chaos

import (
	"strings"
	"testing"
	"time"

	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/faultproxy"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// redis returns how one server is started, behind a proxy.
func redis(args ...string) func(*scene) {
	return func(s *scene) {
		srv := testserver.Redis(s.T, args...)
		s.server, s.proxy = srv, faultproxy.New(s.T, srv.Addr())
		s.url, s.direct = "redis://"+s.proxy.Addr(), srv.URL()
		s.awaitRefusal = func() { s.awaitError(func() error { _, err := srv.Do("SET", "full", "?"); return err }) }
		s.do = func(command ...string) {
			must.OK(s, expect.Err(srv.Do(command...)), command)
		}
	}
}

// valkey starts a server which has commands that Redis has not.
func valkey(s *scene) {
	srv := testserver.Valkey(s.T, "--appendonly", "yes", "--appendfsync", "always")
	s.server, s.proxy = srv, faultproxy.New(s.T, srv.Addr())
	s.url, s.direct = "redis://"+s.proxy.Addr(), srv.URL()
}

// ownClient is a deployment whose programs lock through a client of go-redis that they have already.
func ownClient(start func(*scene)) func(*scene) {
	return func(s *scene) {
		start(s)
		s.client = "go-redis"
	}
}

// command returns a fault that is a command of Redis.
func command(name string, commands ...[]string) fault {
	return fault{name, 0.2, func(s *scene) func() {
		for _, c := range commands {
			s.do(c...)
		}
		return nothing
	}}
}

var (
	flushScripts = command("SCRIPT FLUSH", []string{"SCRIPT", "FLUSH"})
	flushAll     = command("FLUSHALL", []string{"FLUSHALL"})
	evict        = fault{"keys evicted", 0.2, func(s *scene) func() {
		s.do("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
		s.do("CONFIG", "SET", "maxmemory", "1") // the next command that writes evicts all
		return func() { s.do("CONFIG", "SET", "maxmemory", "0", "maxmemory-policy", "noeviction") }
	}}
	// A server that forgets counts its fences from its clock.
	forgetAndBack = fault{"server killed and restarted, its clock set back", 0, func(s *scene) func() {
		s.server.Kill()
		jump(-time.Hour)(s)
		return s.server.Start
	}}
)

// proxies are before the servers of a deployment, by their addresses.
type proxies map[string]*faultproxy.Proxy

// options makes each server announce a proxy.
func (p proxies) options(t *testing.T) testserver.RedisOptions {
	return testserver.RedisOptions{Front: func(addr string) string {
		front := faultproxy.New(t, addr)
		p[front.Addr()] = front
		return front.Addr()
	}}
}

// sentinel starts a master with two replicas, and sentinels.
func sentinel(s *scene) {
	s.fronts = proxies{}
	s.replicas = testserver.RedisSentinel(s.T, s.fronts.options(s.T))
	s.url = "redis+sentinel://" + strings.Join(s.replicas.Addrs(), ",") + "/" + testserver.SentinelName
}

// failover replaces a master whose last grants the replicas have not received.
var failover = fault{"failover that loses a write", 0.2, func(s *scene) func() {
	old := s.replicas.Master()
	s.fronts[old.Public()].Unreplicate()
	s.register.awaitLongHold(10 * s.ttl)
	s.replicas.Failover()
	return s.fronts[old.Public()].Replicate
}}

// redisCluster starts three masters with a replica each.
func redisCluster(s *scene) {
	s.fronts = proxies{}
	s.cluster = testserver.RedisCluster(s.T, s.fronts.options(s.T))
	s.url = "redis+cluster://" + s.cluster.Members()[0].Public()
}

// takeover is failover in a cluster: the replica does not ask its master.
var takeover = fault{failover.what, failover.lasts, func(s *scene) func() {
	s.cluster.AwaitReady()
	old := s.cluster.NodeOf("{" + hot + "}")
	s.fronts[old.Public()].Unreplicate()
	s.register.awaitLongHold(10 * s.ttl)
	s.cluster.ForceFailover(old)
	return s.fronts[old.Public()].Replicate
}}

func redisCells() []cell {
	aof := deployment{name: "redis-aof", title: "Redis, AOF always", ttl: time.Second, start: redis("--appendonly", "yes", "--appendfsync", "always")}
	everysec := deployment{
		name: "redis-everysec", title: "Redis, AOF every second", ttl: time.Second, start: redis("--appendonly", "yes", "--appendfsync", "everysec"),
	}
	memory := deployment{name: "redis-memory", title: "Redis, no persistence", ttl: time.Second, start: redis()}
	cluster := deployment{name: "redis-cluster", title: "Redis Cluster", ttl: 3 * time.Second, start: redisCluster}
	own := deployment{name: "redis-own", title: "Redis, through a program's go-redis client", ttl: time.Second, start: ownClient(aof.start)}
	valkey := deployment{name: "valkey", title: "Valkey, AOF always", ttl: time.Second, start: valkey}
	replicated := deployment{name: "redis-sentinel", title: "Redis Sentinel", ttl: 3 * time.Second, start: sentinel}
	return []cell{
		{aof, killClient, "kill-client", safe},
		{aof, pauseClient, "pause-client", withFences},
		{aof, killServer, "kill-server", safe},
		{aof, bounceServer, "bounce-server", safe},
		{aof, pauseServer, "pause-server", safe},
		{aof, cutConnections, "cut", safe},
		{aof, blackHole, "black-hole", safe},
		{aof, delay, "delay", safe},
		{aof, loseRequests, "lose-requests", safe},
		{aof, loseAnswers, "lose-answers", safe},
		{aof, storm, "storm", safe},
		{aof, flushScripts, "flush-scripts", safe},
		{aof, flushAll, "flush-all", withFences},
		{aof, evict, "evict", withFences},
		{withDisk(aof), slowDisk, "slow-disk", safe},
		{withDisk(aof), fullDiskRestart, "full-disk", safe},
		{withClock(aof), clockAhead, "clock-ahead", withFences},
		{withClock(aof), clockBehind, "clock-behind", safe},
		{everysec, bounceServer, "bounce-server", safe},
		{withDisk(everysec), fullDisk, "full-disk", safe},
		{memory, bounceServer, "bounce-server", withFences},
		{withClock(memory), forgetAndBack, "forget-clock-back", unsafe},
		{own, killClient, "kill-client", safe},
		{own, killServer, "kill-server", safe},
		{own, cutConnections, "cut", safe},
		{own, blackHole, "black-hole", safe},
		{own, loseAnswers, "lose-answers", safe},
		{valkey, killClient, "kill-client", safe},
		{valkey, killServer, "kill-server", safe},
		{valkey, loseAnswers, "lose-answers", safe},
		{replicated, failover, "failover", withFences},
		{cluster, takeover, "failover", withFences},
	}
}
