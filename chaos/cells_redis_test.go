//go:build linux

package chaos

import (
	"strings"
	"sync"
	"time"

	"github.com/distlock/distlock/internal/testkit/faultproxy"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// redis returns how one server is started, behind a proxy.
func redis(args ...string) func(*scene) {
	return func(s *scene) {
		srv := testserver.Redis(s.T, args...)
		s.server, s.proxy = srv, faultproxy.New(s.T, srv.Addr())
		s.url, s.direct = "redis://"+s.proxy.Addr(), srv.URL()
		s.do = func(command ...string) {
			if _, err := srv.Do(command...); err != nil {
				s.Fatalf("%v: %v", command, err)
			}
		}
	}
}

// withClock is redis with a clock that can jump.
func withClock(start func(*scene)) func(*scene) {
	return func(s *scene) {
		s.clock = newClock(s.T)
		start(s)
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
		s.clock.jump(s.T, -time.Hour)
		return s.server.Start
	}}
)

// sentinel starts a master with two replicas, and sentinels. All servers are reached through proxies.
func sentinel(s *scene) {
	var proxies sync.Map
	s.replicas = testserver.RedisSentinel(s.T, testserver.RedisOptions{Front: func(addr string) string {
		p := faultproxy.New(s.T, addr)
		proxies.Store(p.Addr(), p)
		return p.Addr()
	}})
	s.front = func(r *testserver.RedisServer) *faultproxy.Proxy {
		p, _ := proxies.Load(r.Public())
		return p.(*faultproxy.Proxy)
	}
	s.url = "redis+sentinel://" + strings.Join(s.replicas.Addrs(), ",") + "/" + testserver.SentinelName
}

// failover replaces a master whose last grants the replicas have not received.
var failover = fault{"failover that loses a write", 0.2, func(s *scene) func() {
	old := s.replicas.Master()
	s.front(old).Unreplicate()
	s.register.awaitLongHold(10 * s.ttl)
	s.replicas.Failover()
	return s.front(old).Replicate
}}

func redisCells() []cell {
	disk := redis("--appendonly", "yes", "--appendfsync", "always")
	aof := deployment{name: "redis-aof", title: "Redis, AOF always", ttl: time.Second, start: disk}
	aofClock := aof
	aofClock.start, aofClock.alone = withClock(disk), true
	everysec := deployment{
		name: "redis-everysec", title: "Redis, AOF every second", ttl: time.Second, start: redis("--appendonly", "yes", "--appendfsync", "everysec"),
	}
	memory := deployment{name: "redis-memory", title: "Redis, no persistence", ttl: time.Second, start: redis()}
	memoryClock := memory
	memoryClock.start, memoryClock.alone = withClock(redis()), true
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
		{aofClock, clockAhead, "clock-ahead", withFences},
		{aofClock, clockBehind, "clock-behind", safe},
		{everysec, bounceServer, "bounce-server", safe},
		{memory, bounceServer, "bounce-server", withFences},
		{memoryClock, forgetAndBack, "forget-clock-back", unsafe},
		{replicated, failover, "failover", withFences},
	}
}
