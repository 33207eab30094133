package testserver

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/distlock/distlock/internal/testkit/faultproxy"
)

// ZooKeeperGroup is an ensemble of three servers. A leader that dies is replaced in
// about a second, one that is silent in about three.
type ZooKeeperGroup struct {
	group[*ZooKeeperServer]
	links []*faultproxy.Proxy         // by which each member reaches the others
	owner map[string]*ZooKeeperServer // of an address
}

// ZooKeeperCluster starts an ensemble of the test's own, and returns when all its
// servers serve. It takes about three seconds.
func ZooKeeperCluster(tb testing.TB, o ZooKeeperOptions) *ZooKeeperGroup {
	tb.Helper()
	g := startZooKeeperCluster(tb, o, faultproxy.NewSOCKS)
	tb.Cleanup(g.end)
	return g
}

var sharedZooKeeperCluster shared[*ZooKeeperGroup]

// SharedZooKeeperCluster returns an ensemble that all tests of the process use: none may stop
// any of it, or cut it in parts.
func SharedZooKeeperCluster(tb testing.TB) *ZooKeeperGroup {
	tb.Helper()
	g := *sharedZooKeeperCluster.get(func() *ZooKeeperGroup { return startZooKeeperCluster(tb, ZooKeeperOptions{}, nil) })
	g.tb = tb
	return &g
}

// URL returns how zklock.Open reaches the ensemble.
func (g *ZooKeeperGroup) URL() string { return "zk://" + strings.Join(g.Addrs(), ",") }

// AwaitReady returns when all members serve: after a Start, say.
func (g *ZooKeeperGroup) AwaitReady() {
	g.tb.Helper()
	g.await("the ensemble is not whole", g.whole, g.processes()...)
}

func (g *ZooKeeperGroup) whole() error {
	for _, s := range g.members {
		if err := s.ok(); err != nil {
			return err
		}
	}
	return nil
}

// vote returns the leader that another member follows; old has no say in it, and is not the leader.
func (g *ZooKeeperGroup) vote(old *ZooKeeperServer) (leader *ZooKeeperServer, err error) {
	modes := map[string]int{}
	for _, s := range g.without(old) {
		mode, err := s.asked("srvr", "Mode:")
		if err != nil {
			continue
		}
		modes[mode]++
		if mode == "leader" {
			leader = s
		}
	}
	if leader == nil || modes["follower"] == 0 {
		return nil, fmt.Errorf("the members are %v: %w", modes, errNotYet)
	}
	return leader, nil
}

// Isolate cuts a member off from the others; clients reach it as before. Heal ends it.
// A member that is cut off serves for up to two seconds more.
func (g *ZooKeeperGroup) Isolate(s *ZooKeeperServer) {
	for i, link := range g.links {
		if g.members[i] == s {
			link.Silence()
		} else {
			link.SeverTo(func(server string) bool { return g.owner[server] == s })
		}
	}
}

// Heal lets all members reach each other again.
func (g *ZooKeeperGroup) Heal() {
	for _, link := range g.links {
		link.Pass()
	}
}

// startZooKeeperCluster starts three members; link makes the proxy of each member's connections to the
// others, if any.
func startZooKeeperCluster(tb testing.TB, o ZooKeeperOptions, link func(testing.TB) *faultproxy.Proxy) *ZooKeeperGroup {
	tb.Helper()
	g := &ZooKeeperGroup{}
	g.tb, g.elected = tb, g.vote
	for range 3 {
		g.members = append(g.members, newZooKeeper(tb))
		if link != nil {
			g.links = append(g.links, link(tb))
		}
	}
	if err := thrice(func() error { return g.start(o) }); err != nil {
		g.end()
		tb.Fatalf("testserver: %v", err)
	}
	return g
}

func (g *ZooKeeperGroup) start(o ZooKeeperOptions) error {
	if err := g.introduce(&o); err != nil {
		return err
	}
	for i, s := range g.members {
		own := o
		if g.links != nil {
			_, port, _ := net.SplitHostPort(g.links[i].Addr())
			own.java = []string{"-DsocksProxyHost=127.0.0.1", "-DsocksProxyPort=" + port, "-DsocksNonProxyHosts="} // not even this host
		}
		if err := own.write(s); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(s.data(), "myid"), []byte(strconv.Itoa(i+1)), 0o600); err != nil {
			return err
		}
	}
	// No member serves before it has a leader, for which it takes two.
	return startTogether(g.processes()...)
}

// introduce chooses ports, and adds to the options what all members must know.
func (g *ZooKeeperGroup) introduce(o *ZooKeeperOptions) error {
	g.owner = map[string]*ZooKeeperServer{}
	// A member that hears nothing of the others for two seconds gives up.
	config := []string{"initLimit=25", "syncLimit=10"}
	for i, s := range g.members {
		os.RemoveAll(s.data())
		var ports [3]int
		for j := range ports {
			var err error
			if ports[j], err = freePort(); err != nil {
				return err
			}
			g.owner[loopback(ports[j])] = s
		}
		s.port = ports[0]
		config = append(config, fmt.Sprintf("server.%d=127.0.0.1:%d:%d", i+1, ports[1], ports[2]))
	}
	o.config = config
	return nil
}
