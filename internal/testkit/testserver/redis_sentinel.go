package testserver

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// SentinelName is the sentinels' name for the master.
const SentinelName = "main"

// sentinelDown is after how many ms a server that doesn't answer counts as down. None does in a deployment that tests share: there
// a machine that stalls must cause no failover.
const (
	sentinelDown       = 1000
	sharedSentinelDown = 60_000
)

// RedisSentinelGroup is a master with two replicas, and three sentinels that watch
// them. A master that dies is replaced in about three seconds.
type RedisSentinelGroup struct {
	group[*RedisServer] // of those that keep data
	options             RedisOptions
	down                int // see sentinelDown
	sentinels           group[*RedisServer]
}

// RedisSentinel starts a master, two replicas and three sentinels of the test's own,
// and returns when all of them know each other. It takes about two seconds.
func RedisSentinel(tb testing.TB, o RedisOptions) *RedisSentinelGroup {
	tb.Helper()
	g := startSentinel(tb, o, sentinelDown)
	tb.Cleanup(g.end)
	return g
}

var sharedSentinel shared[*RedisSentinelGroup]

// SharedRedisSentinel returns a deployment that all tests of the process use: none may stop
// any of it.
func SharedRedisSentinel(tb testing.TB) *RedisSentinelGroup {
	tb.Helper()
	g := *sharedSentinel.get(func() *RedisSentinelGroup { return startSentinel(tb, RedisOptions{}, sharedSentinelDown) })
	g.tb = tb
	return &g
}

// Sentinels returns the processes that watch.
func (g *RedisSentinelGroup) Sentinels() []*RedisServer { return g.sentinels.members }

// Addrs returns the addresses of the sentinels.
func (g *RedisSentinelGroup) Addrs() []string { return g.sentinels.Addrs() }

// Master returns the server that the sentinels take for the master. Followers are its replicas.
func (g *RedisSentinelGroup) Master() *RedisServer {
	g.tb.Helper()
	return g.Leader()
}

// AwaitFailover returns the new master once old is not the master any more, for any
// sentinel that answers.
func (g *RedisSentinelGroup) AwaitFailover(old *RedisServer) *RedisServer {
	g.tb.Helper()
	return g.AwaitLeader(old)
}

// Failover makes a replica the master, though all nodes live, and returns it.
func (g *RedisSentinelGroup) Failover() *RedisServer {
	g.tb.Helper()
	old := g.Master()
	// A sentinel that does not know of a good replica yet refuses.
	g.await("failover", func() error {
		_, err := g.Sentinels()[0].Do("SENTINEL", "FAILOVER", SentinelName)
		return err
	})
	return g.AwaitFailover(old)
}

// vote returns the server that all sentinels that answer call the master, two at least,
// and that calls itself so; not old.
func (g *RedisSentinelGroup) vote(old *RedisServer) (*RedisServer, error) {
	votes := map[string]int{}
	for _, s := range g.Sentinels() {
		reply, err := s.poll("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SentinelName)
		if at, ok := reply.([]any); err == nil && ok && len(at) == 2 {
			votes[net.JoinHostPort(fmt.Sprint(at[0]), fmt.Sprint(at[1]))]++
		}
	}
	for _, s := range g.without(old) {
		if len(votes) == 1 && votes[s.Public()] > 1 {
			role, _, err := s.role()
			if err != nil || role != "master" {
				err = fmt.Errorf("%s is a %s (%v): %w", s.Public(), role, err, errNotYet)
			}
			return s, err
		}
	}
	return nil, fmt.Errorf("the sentinels name %v: %w", votes, errNotYet)
}

func (g *RedisSentinelGroup) end() {
	g.sentinels.end()
	g.group.end()
}

func startSentinel(tb testing.TB, o RedisOptions, down int) *RedisSentinelGroup {
	tb.Helper()
	g := &RedisSentinelGroup{options: o, down: down}
	g.tb, g.elected = tb, g.vote
	err := g.startData()
	if err == nil {
		err = g.startSentinels()
	}
	if err != nil {
		g.end()
		tb.Fatalf("testserver: %v", err)
	}
	return g
}

func (g *RedisSentinelGroup) startData() error {
	for range 3 {
		s := newRedis(g.tb, "redis", redisServer)
		g.members = append(g.members, s)
		if err := g.options.launch(s, g.dataArgs); err != nil {
			return err
		}
	}
	for _, s := range g.members[1:] {
		if err := await(s.following, s.Process, g.members[0].Process); err != nil {
			return err
		}
	}
	return nil
}

// dataArgs makes the first server the master, and the others its replicas.
func (g *RedisSentinelGroup) dataArgs(host, port string) ([]string, error) {
	args := []string{"--replica-announce-ip", host, "--replica-announce-port", port}
	if len(g.members) == 1 {
		return args, nil
	}
	host, port, err := net.SplitHostPort(g.members[0].Public())
	return append(args, "--replicaof", host, port), err
}

func (g *RedisSentinelGroup) startSentinels() error {
	for range 3 {
		s := newRedis(g.tb, "redis", redisServer)
		s.password = g.options.SentinelPassword
		g.sentinels.members = append(g.sentinels.members, s)
		if err := s.launch(func() error { return g.configure(s) }); err != nil {
			return err
		}
	}
	for _, s := range g.Sentinels() {
		if err := await(func() error { return acquainted(s) }, s.Process); err != nil {
			return err
		}
	}
	return nil
}

// configure writes a sentinel's configuration.
func (g *RedisSentinelGroup) configure(s *RedisServer) error {
	o := &g.options
	host, port, err := net.SplitHostPort(g.members[0].Public())
	if err != nil {
		return err
	}
	lines := []string{
		"port " + strconv.Itoa(s.port), "bind 127.0.0.1", "daemonize no", "dir " + s.dir,
		"sentinel announce-ip 127.0.0.1", "sentinel announce-port " + strconv.Itoa(s.port),
		strings.Join([]string{"sentinel monitor", SentinelName, host, port, "2"}, " "),
		fmt.Sprintf("sentinel down-after-milliseconds %s %d", SentinelName, g.down),
		fmt.Sprintf("sentinel failover-timeout %s 3000", SentinelName),
		fmt.Sprintf("sentinel parallel-syncs %s 2", SentinelName),
	}
	for _, l := range []struct{ line, value string }{
		{"sentinel auth-pass " + SentinelName, o.Password},
		{"sentinel auth-user " + SentinelName, o.User},
		{"sentinel sentinel-pass", o.SentinelPassword},
		{"requirepass", o.SentinelPassword},
	} {
		if l.value != "" {
			lines = append(lines, l.line+" "+l.value)
		}
	}
	secure, err := o.useTLS(s)
	if err != nil {
		return err
	}
	for i := 0; i < len(secure); i += 2 {
		lines = append(lines, strings.TrimPrefix(secure[i], "--")+" "+secure[i+1])
	}
	conf := filepath.Join(s.dir, "sentinel.conf")
	s.args = []string{conf, "--sentinel"}
	return os.WriteFile(conf, []byte(strings.Join(lines, "\n")+"\n"), 0o600)
}

// acquainted succeeds if a sentinel knows both replicas and both of the others, so
// that a failover would succeed.
func acquainted(s *RedisServer) error {
	reply, err := s.poll("SENTINEL", "MASTER", SentinelName)
	if err != nil {
		return err
	}
	fields, _ := reply.([]any)
	known := map[any]any{}
	for i := 0; i+1 < len(fields); i += 2 {
		known[fields[i]] = fields[i+1]
	}
	if known["flags"] != "master" || known["num-slaves"] != "2" || known["num-other-sentinels"] != "2" {
		return fmt.Errorf("a sentinel knows %v: %w", known, errNotYet)
	}
	_, err = s.poll("SENTINEL", "CKQUORUM", SentinelName)
	return err
}
