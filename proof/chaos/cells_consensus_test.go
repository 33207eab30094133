//go:build linux

package chaos

import (
	"fmt"
	"net/http"
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
	isolateLeader = fault{"leader cut off from the others", 1.5, func(s *scene) func() { return s.isolateLeader() }}
)

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
		ask := fmt.Sprintf(`{"action":%q,"alarm":"NOSPACE"}`, command[0])
		resp := must.Get(http.Post("http://"+srv.Addr()+"/v3/maintenance/alarm", "application/json", strings.NewReader(ask)))(s)
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			s.Fatalf("alarm: %s", resp.Status)
		}
	}
}

func etcdCluster(s *scene) {
	g := testserver.EtcdCluster(s.T, testserver.EtcdOptions{})
	s.url = g.URL()
	s.leader = func() server { return g.Leader() }
	s.isolateLeader = func() func() {
		g.Isolate(g.Leader())
		return g.Heal
	}
}

func zooKeeper(s *scene) {
	srv := testserver.ZooKeeper(s.T, testserver.ZooKeeperOptions{})
	s.server, s.proxy, s.direct = srv, faultproxy.New(s.T, srv.Addr()), srv.URL()
	s.url = strings.Replace(srv.URL(), srv.Addr(), s.proxy.Addr(), 1)
}

func zooKeeperCluster(s *scene) {
	g := testserver.ZooKeeperCluster(s.T, testserver.ZooKeeperOptions{})
	s.url = g.URL()
	s.leader = func() server { return g.Leader() }
	s.isolateLeader = func() func() {
		g.Isolate(g.Leader())
		return g.Heal
	}
}

func consensusCells() []cell {
	etcd := deployment{name: "etcd", title: "etcd", ttl: 3 * time.Second, more: 2 * time.Second, start: etcd}
	etcds := deployment{name: "etcd-cluster", title: "etcd, three members", ttl: 4 * time.Second, more: 2 * time.Second, start: etcdCluster}
	zk := deployment{name: "zookeeper", title: "ZooKeeper", ttl: 4 * time.Second, more: 6 * time.Second, start: zooKeeper}
	zks := deployment{name: "zookeeper-cluster", title: "ZooKeeper, three members", ttl: 4 * time.Second, more: 6 * time.Second, start: zooKeeperCluster}
	cells := append(networkCells(etcd), cell{etcd, noSpace, "no-space", safe})
	cells = append(cells, cell{etcds, killLeader, "kill-leader", safe}, cell{etcds, isolateLeader, "isolate-leader", safe})
	cells = append(cells, networkCells(zk)...)
	cells = append(cells, cell{withDisk(zk), slowDisk, "slow-disk", safe})
	return append(cells, cell{zks, killLeader, "kill-leader", safe}, cell{zks, isolateLeader, "isolate-leader", safe})
}
