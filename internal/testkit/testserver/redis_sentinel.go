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

// sentinelDown is after how many ms a server that doesn't answer counts as down.
const sentinelDown = 1000

// RedisSentinelGroup is a master with two replicas, and three sentinels that watch
// them. A master that dies is replaced in about three seconds.
type RedisSentinelGroup struct {
	group
	sentinels []*RedisServer
}

// RedisSentinel starts a master, two replicas and three sentinels of the test's own,
// and returns when all of them know each other. It takes about two seconds.
func RedisSentinel(tb testing.TB, o RedisOptions) *RedisSentinelGroup {
	tb.Helper()
	g := startSentinel(tb, o)
	tb.Cleanup(g.end)
	return g
}

var sharedSentinel shared[*RedisSentinelGroup]

// SharedRedisSentinel returns a deployment that all tests of the process use: none may stop
// any of it.
func SharedRedisSentinel(tb testing.TB) *RedisSentinelGroup {
	tb.Helper()
	g := *sharedSentinel.get(func() *RedisSentinelGroup { return startSentinel(tb, RedisOptions{}) })
	g.tb = tb
	return &g
}

// Sentinels returns the processes that watch.
func (g *RedisSentinelGroup) Sentinels() []*RedisServer { return g.sentinels }

// Addrs returns the addresses of the sentinels.
func (g *RedisSentinelGroup) Addrs() []string { return addrs(g.sentinels) }

// Master returns the server that the sentinels take for the master.
func (g *RedisSentinelGroup) Master() *RedisServer {
	g.tb.Helper()
	var master *RedisServer
	g.await("no master", func() (err error) {
		master, err = g.elected()
		return err
	})
	return master
}

// Replicas returns the servers that follow the master.
func (g *RedisSentinelGroup) Replicas() []*RedisServer {
	g.tb.Helper()
	master := g.Master()
	var replicas []*RedisServer
	for _, s := range g.nodes {
		if s != master {
			replicas = append(replicas, s)
		}
	}
	return replicas
}

// AwaitFailover returns the new master once old is not the master any more, for any
// sentinel that answers.
func (g *RedisSentinelGroup) AwaitFailover(old *RedisServer) *RedisServer {
	g.tb.Helper()
	var master *RedisServer
	g.await("no failover", func() (err error) {
		master, err = g.elected()
		if err == nil && master == old {
			err = errNotYet
		}
		return err
	})
	return master
}

// Failover makes a replica the master, though all nodes live, and returns it.
func (g *RedisSentinelGroup) Failover() *RedisServer {
	g.tb.Helper()
	old := g.Master()
	// A sentinel that does not know of a good replica yet refuses.
	g.await("failover", func() error {
		_, err := g.sentinels[0].Do("SENTINEL", "FAILOVER", SentinelName)
		return err
	})
	return g.AwaitFailover(old)
}

// elected returns the server that all sentinels that answer call the master, two at least,
// and that calls itself so.
func (g *RedisSentinelGroup) elected() (*RedisServer, error) {
	votes := map[string]int{}
	for _, s := range g.sentinels {
		reply, err := s.poll("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SentinelName)
		if at, ok := reply.([]any); err == nil && ok && len(at) == 2 {
			votes[net.JoinHostPort(fmt.Sprint(at[0]), fmt.Sprint(at[1]))]++
		}
	}
	for public, n := range votes {
		master := g.node(public)
		if len(votes) > 1 || n < 2 || master == nil {
			break
		}
		if role, _, err := master.role(); err != nil || role != "master" {
			return nil, fmt.Errorf("%s is a %s (%v): %w", public, role, err, errNotYet)
		}
		return master, nil
	}
	return nil, fmt.Errorf("the sentinels name %v: %w", votes, errNotYet)
}

func (g *RedisSentinelGroup) end() {
	for _, s := range g.sentinels {
		s.end()
	}
	g.group.end()
}

func startSentinel(tb testing.TB, o RedisOptions) *RedisSentinelGroup {
	tb.Helper()
	g := &RedisSentinelGroup{group: group{tb: tb, options: o}}
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
		if _, err := g.add(g.dataArgs); err != nil {
			return err
		}
	}
	for _, s := range g.nodes[1:] {
		if err := await(s.following, s.Process, g.nodes[0].Process); err != nil {
			return err
		}
	}
	return nil
}

// dataArgs makes the first server the master, and the others its replicas.
func (g *RedisSentinelGroup) dataArgs(s *RedisServer) ([]string, error) {
	host, port, err := g.options.front(s.Addr())
	if err != nil {
		return nil, err
	}
	s.public = net.JoinHostPort(host, port)
	args := []string{"--replica-announce-ip", host, "--replica-announce-port", port}
	if g.options.TLS {
		args = append(args, "--tls-replication", "yes")
	}
	if len(g.nodes) > 0 {
		host, port, err = net.SplitHostPort(g.nodes[0].Public())
		args = append(args, "--replicaof", host, port)
	}
	return args, err
}

func (g *RedisSentinelGroup) startSentinels() error {
	for range 3 {
		s := newRedis(g.tb)
		s.user, s.password = g.options.SentinelUser, g.options.SentinelPassword
		g.sentinels = append(g.sentinels, s)
		err := launch(func(port int) error {
			s.port = port
			return g.startOne(s)
		})
		if err != nil {
			return err
		}
	}
	for _, s := range g.sentinels {
		if err := await(func() error { return acquainted(s) }, s.Process); err != nil {
			return err
		}
	}
	return nil
}

func (g *RedisSentinelGroup) startOne(s *RedisServer) error {
	lines, err := g.sentinelConfig(s)
	if err != nil {
		return err
	}
	conf := filepath.Join(s.dir, "sentinel.conf")
	if err := os.WriteFile(conf, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		return err
	}
	s.args = []string{conf, "--sentinel"}
	return s.start()
}

func (g *RedisSentinelGroup) sentinelConfig(s *RedisServer) ([]string, error) {
	host, port, err := net.SplitHostPort(g.nodes[0].Public())
	if err != nil {
		return nil, err
	}
	lines := []string{
		"port " + strconv.Itoa(s.port), "bind 127.0.0.1", "daemonize no", "dir " + s.dir,
		"sentinel announce-ip 127.0.0.1", "sentinel announce-port " + strconv.Itoa(s.port),
		strings.Join([]string{"sentinel monitor", SentinelName, host, port, "2"}, " "),
		fmt.Sprintf("sentinel down-after-milliseconds %s %d", SentinelName, sentinelDown),
		fmt.Sprintf("sentinel failover-timeout %s 3000", SentinelName),
		fmt.Sprintf("sentinel parallel-syncs %s 2", SentinelName),
	}
	lines = append(lines, g.sentinelLogins()...)
	if g.options.TLS {
		own, err := s.useTLS()
		if err != nil {
			return nil, err
		}
		lines = append(lines, configLines(own)...)
	}
	return lines, nil
}

// sentinelLogins returns how sentinels log in to servers and to each other, and how others
// do to them.
func (g *RedisSentinelGroup) sentinelLogins() []string {
	o := &g.options
	lines := configLines(loginArgs(o.SentinelUser, o.SentinelPassword))
	for _, l := range []struct{ line, value string }{
		{"sentinel auth-pass " + SentinelName, o.Password},
		{"sentinel auth-user " + SentinelName, o.User},
		{"sentinel sentinel-pass", o.SentinelPassword},
		{"sentinel sentinel-user", o.SentinelUser},
	} {
		if l.value != "" {
			lines = append(lines, l.line+" "+l.value)
		}
	}
	return lines
}

// configLines writes a command line as a config file.
func configLines(args []string) []string {
	var lines []string
	for _, a := range args {
		if name, ok := strings.CutPrefix(a, "--"); ok {
			lines = append(lines, name)
		} else {
			lines[len(lines)-1] += " " + a
		}
	}
	return lines
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

func addrs(servers []*RedisServer) []string {
	var list []string
	for _, s := range servers {
		list = append(list, s.Addr())
	}
	return list
}
