//go:build linux

package chaos

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/distlock/distlock/internal/testkit/faultproxy"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

var (
	killLeader = fault{"leader killed and restarted", 1, func(s *scene) func() {
		leader := s.leader()
		leader.Kill()
		return leader.Start
	}}
	pauseLeader = fault{"leader paused", 1.5, func(s *scene) func() {
		leader := s.leader()
		leader.Pause()
		return leader.Resume
	}}
	isolateLeader   = fault{"leader cut off from the others", 3, isolated(func(s *scene) server { return s.leader() })}
	isolateFollower = fault{"follower cut off from the others", 3, isolated(func(s *scene) server {
		leader := s.leader()
		return s.members[slices.IndexFunc(s.members, func(m server) bool { return m != leader })]
	})}
	restartEach = fault{"each member killed and restarted", 0.5, func(s *scene) func() {
		for _, m := range s.members {
			m.Kill()
			m.Start()
		}
		return nothing
	}}
	silentHolder = fault{"holder cut off (black hole)", 4, func(s *scene) func() {
		loosen := s.holdOn()
		each(s.ways[s.holder], (*faultproxy.Proxy).Silence)
		return func() {
			each(s.ways[s.holder], (*faultproxy.Proxy).Pass)
			loosen()
		}
	}}
	unreachableLeader = fault{"leader not reached by clients (black hole)", 1.5, func(s *scene) func() {
		i := slices.Index(s.members, s.leader())
		ways := func(f func(*faultproxy.Proxy)) {
			for _, w := range s.ways {
				f(w[i])
			}
		}
		ways((*faultproxy.Proxy).Silence)
		return func() { ways((*faultproxy.Proxy).Pass) }
	}}
	moves        = fault{cutConnections.what, 1, repeat(50*time.Millisecond, func(s *scene) { s.toAll((*faultproxy.Proxy).Cut) })}
	lossyNetwork = fault{"requests and answers lost", 1, func(s *scene) func() {
		s.toAll(func(p *faultproxy.Proxy) { p.Storm(rand.Uint64(), 0.05, hot) })
		return func() { s.toAll(func(p *faultproxy.Proxy) { p.Storm(0, 0, "") }) }
	}}
	// Waiters watch from revisions that are gone when they come back.
	compaction = fault{"history compacted, connections cut", 0.5, repeat(50*time.Millisecond, func(s *scene) {
		s.do("COMPACT")
		s.toAll((*faultproxy.Proxy).Cut)
	})}
)

// isolated cuts off a member from the others, and the holder from those.
func isolated(which func(*scene) server) func(*scene) func() {
	return func(s *scene) func() {
		m, loosen := which(s), s.holdOn()
		for i, w := range s.ways[s.holder] {
			if s.members[i] != m {
				w.Silence()
			}
		}
		heal := s.isolate(m)
		return func() {
			heal()
			each(s.ways[s.holder], (*faultproxy.Proxy).Pass)
			loosen()
		}
	}
}

// holdOn keeps the holder of the hot lock from ending its hold by itself.
func (s *scene) holdOn() (loosen func()) {
	quit := make(chan struct{})
	s.register.atLook(func(Access) { <-quit })
	return func() {
		s.register.atLook(nil)
		close(quit)
	}
}

func each(ways []*faultproxy.Proxy, f func(*faultproxy.Proxy)) {
	for _, w := range ways {
		f(w)
	}
}

// toAll does something to each way from a worker to a member.
func (s *scene) toAll(f func(*faultproxy.Proxy)) {
	for _, w := range s.ways {
		each(w, f)
	}
}

// noSpace raises the alarm that etcd raises when its quota is used up. etcd then refuses requests that need space.
var noSpace = fault{"database space exceeded (alarm NOSPACE)", 1.5, func(s *scene) func() {
	s.do("ACTIVATE")
	return func() { s.do("DEACTIVATE") }
}}

func etcd(s *scene) {
	srv := testserver.Etcd(s.T, testserver.EtcdOptions{})
	s.server, s.proxy, s.direct = srv, faultproxy.New(s.T, srv.Addr()), srv.URL()
	s.url = strings.Replace(srv.URL(), srv.Addr(), s.proxy.Addr(), 1)
	s.do = func(command ...string) {
		askEtcd(s, srv, "maintenance/alarm", fmt.Sprintf(`{"action":%q,"alarm":"NOSPACE"}`, command[0]))
	}
}

func askEtcd(s *scene, srv server, path, ask string) string {
	resp := must.Get(http.Post("http://"+srv.Addr()+"/v3/"+path, "application/json", strings.NewReader(ask)))(s)
	defer resp.Body.Close()
	text := must.Get(io.ReadAll(resp.Body))(s)
	if resp.StatusCode != http.StatusOK && !strings.Contains(string(text), "compacted") { // by a call without an answer
		s.Fatalf("%s: %s", path, text)
	}
	return string(text)
}

func etcdCluster(current bool) func(*scene) {
	return func(s *scene) {
		g := testserver.EtcdCluster(s.T, testserver.EtcdOptions{Current: current})
		clustered(s, "etcd://", g)
		s.do = func(...string) {
			put := askEtcd(s, g.Members()[0], "kv/put", `{"key":"b3RoZXI=","value":"eA=="}`)
			_, revision, _ := strings.Cut(put, `"revision":"`)
			revision, _, _ = strings.Cut(revision, `"`)
			askEtcd(s, g.Members()[0], "kv/compaction", `{"revision":"`+revision+`"}`)
		}
		s.rest = func() (left []string) {
			if leases := askEtcd(s, g.Members()[0], "lease/leases", "{}"); strings.Contains(leases, `"ID"`) {
				left = append(left, leases)
			}
			return left
		}
	}
}

func zooKeeper(s *scene) {
	srv := testserver.ZooKeeper(s.T, testserver.ZooKeeperOptions{})
	s.server, s.proxy, s.direct = srv, faultproxy.New(s.T, srv.Addr()), srv.URL()
	s.url = strings.Replace(srv.URL(), srv.Addr(), s.proxy.Addr(), 1)
}

func zooKeeperCluster(s *scene) {
	clustered(s, "zk://", testserver.ZooKeeperCluster(s.T, testserver.ZooKeeperOptions{}))
}

// group is servers that elect a leader.
type group[S server] interface {
	Members() []S
	Leader() S
	Isolate(S)
	Heal()
	URL() string
}

// clustered gives each worker a way of its own to each member.
func clustered[S server](s *scene, scheme string, g group[S]) {
	s.direct, s.ways = g.URL(), map[int][]*faultproxy.Proxy{}
	for _, m := range g.Members() {
		s.members = append(s.members, m)
	}
	s.leader = func() server { return g.Leader() }
	s.isolate = func(m server) func() {
		g.Isolate(m.(S))
		return g.Heal
	}
	s.reach = func(process int) string {
		var hosts []string
		for _, m := range s.members {
			w := faultproxy.New(s.T, m.Addr())
			s.ways[process], hosts = append(s.ways[process], w), append(hosts, w.Addr())
		}
		return scheme + strings.Join(hosts, ",")
	}
}

func consensusCells() []cell {
	etcd := deployment{name: "etcd", title: "etcd", ttl: 3 * time.Second, more: 2 * time.Second, start: etcd}
	etcds := deployment{name: "etcd-cluster", title: "etcd, three members", ttl: 4 * time.Second, more: 2 * time.Second, start: etcdCluster(false)}
	zk := deployment{name: "zookeeper", title: "ZooKeeper", ttl: 4 * time.Second, more: 6 * time.Second, start: zooKeeper}
	zks := deployment{name: "zookeeper-cluster", title: "ZooKeeper, three members", ttl: 4 * time.Second, more: 6 * time.Second, start: zooKeeperCluster}
	// A leader of etcd 3.4.23 that was paused ends leases that its successor has prolonged.
	current := etcds
	current.start = etcdCluster(true)
	cells := append(networkCells(etcd), cell{etcd, noSpace, "no-space", safe})
	cells = append(append(cells, clusterCells(etcds)...), cell{current, pauseLeader, "pause-leader", safe}, cell{etcds, compaction, "compaction", safe})
	cells = append(cells, networkCells(zk)...)
	cells = append(cells, cell{withDisk(zk), slowDisk, "slow-disk", safe})
	return append(append(cells, clusterCells(zks)...), cell{zks, pauseLeader, "pause-leader", safe})
}

func clusterCells(d deployment) []cell {
	return []cell{
		{d, killLeader, "kill-leader", safe},
		{d, isolateLeader, "isolate-leader", safe},
		{d, isolateFollower, "isolate-follower", safe},
		{d, restartEach, "restart-each", safe},
		{d, silentHolder, "silent-holder", safe},
		{d, unreachableLeader, "unreachable-leader", safe},
		{d, moves, "cut", safe},
		{d, lossyNetwork, "lose-messages", safe},
	}
}
