package testserver

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"testing"
	"time"
)

// ClusterSlots is how many slots a Redis Cluster has.
const ClusterSlots = 16384

// clusterTimeout is after how many ms a node that doesn't answer counts as failing.
const clusterTimeout = 1500

// clusterMasters is how many nodes start as masters; as many start as replicas.
const clusterMasters = 3

// RedisClusterGroup is a Redis Cluster of three masters with a replica each. A master
// that dies is replaced in about three seconds.
type RedisClusterGroup struct {
	group
	ids []string // of nodes
}

// RedisCluster starts a cluster of the test's own, and returns when all its nodes know
// each other and take commands. It takes about three seconds.
func RedisCluster(tb testing.TB, o RedisOptions) *RedisClusterGroup {
	tb.Helper()
	g := startCluster(tb, o)
	tb.Cleanup(g.end)
	return g
}

var sharedCluster shared[*RedisClusterGroup]

// SharedRedisCluster returns a cluster that all tests of the process use: none may stop any
// of it or move its slots.
func SharedRedisCluster(tb testing.TB) *RedisClusterGroup {
	tb.Helper()
	g := *sharedCluster.get(func() *RedisClusterGroup { return startCluster(tb, RedisOptions{}) })
	g.tb = tb
	return &g
}

// Addrs returns the addresses of all nodes.
func (g *RedisClusterGroup) Addrs() []string { return addrs(g.nodes) }

// Slot returns the slot of a key.
func (g *RedisClusterGroup) Slot(key string) int {
	g.tb.Helper()
	slot, _ := g.must(g.any(), "CLUSTER", "KEYSLOT", key).(int64)
	return int(slot)
}

// NodeOf returns the master that keeps a key.
func (g *RedisClusterGroup) NodeOf(key string) *RedisServer {
	g.tb.Helper()
	return g.Owner(g.Slot(key))
}

// Owner returns the master of a slot.
func (g *RedisClusterGroup) Owner(slot int) *RedisServer {
	g.tb.Helper()
	var owner *RedisServer
	g.await("no owner", func() error {
		v, err := clusterView(g.any())
		if err == nil {
			owner = g.byID(v.owner(slot))
		}
		if err == nil && owner == nil {
			err = fmt.Errorf("slot %d: %w", slot, errNotYet)
		}
		return err
	})
	return owner
}

// Masters returns the nodes that own slots.
func (g *RedisClusterGroup) Masters() []*RedisServer {
	g.tb.Helper()
	var masters []*RedisServer
	var v view
	g.await("no view of the cluster", func() (err error) {
		v, err = clusterView(g.any())
		return err
	})
	for _, n := range v {
		if len(n.slots) > 0 {
			masters = append(masters, g.byID(n.id))
		}
	}
	return masters
}

// Partner returns the other node of the same data: a master's replica, a replica's master.
func (g *RedisClusterGroup) Partner(s *RedisServer) *RedisServer {
	i := slices.Index(g.nodes, s)
	return g.nodes[(i+clusterMasters)%len(g.nodes)]
}

// Failover makes the replica of a master take its place, in agreement with it, and
// returns that one.
func (g *RedisClusterGroup) Failover(master *RedisServer) *RedisServer {
	g.tb.Helper()
	replica := g.Partner(master)
	g.must(replica, "CLUSTER", "FAILOVER")
	return g.AwaitFailover(master)
}

// AwaitFailover returns the node that took over from a master, once all that live know
// it and take commands.
func (g *RedisClusterGroup) AwaitFailover(old *RedisServer) *RedisServer {
	g.tb.Helper()
	successor := g.Partner(old)
	id := g.id(successor)
	g.await("no failover", func() error {
		return g.all(func(v view) error {
			if n := v.node(id); n == nil || !n.is("master") {
				return fmt.Errorf("%s is no master: %w", successor.Addr(), errNotYet)
			}
			return nil
		})
	})
	return successor
}

// AwaitReady returns when all nodes live, know each other, take commands, and follow
// their masters: after a Start, say.
func (g *RedisClusterGroup) AwaitReady() {
	g.tb.Helper()
	g.await("the cluster is not ready", g.whole, g.processes()...)
}

func (g *RedisClusterGroup) any() *RedisServer {
	i := slices.IndexFunc(g.nodes, func(s *RedisServer) bool { return s.alive() })
	return g.nodes[max(i, 0)]
}

func (g *RedisClusterGroup) id(s *RedisServer) string { return g.ids[slices.Index(g.nodes, s)] }

func (g *RedisClusterGroup) byID(id string) *RedisServer {
	if i := slices.Index(g.ids, id); i >= 0 {
		return g.nodes[i]
	}
	return nil
}

// all asks every node that lives: each must take commands, and see what check wants.
func (g *RedisClusterGroup) all(check func(view) error) error {
	for _, s := range g.nodes {
		if !s.alive() {
			continue
		}
		if err := takesCommands(s); err != nil {
			return err
		}
		v, err := clusterView(s)
		if err == nil {
			err = check(v)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// whole succeeds if all nodes agree that half of them are masters and half replicas,
// and the replicas have all that there is.
func (g *RedisClusterGroup) whole() error {
	err := g.all(func(v view) error {
		masters, replicas := v.count("master"), v.count("slave")
		if masters != clusterMasters || replicas != len(g.nodes)-clusterMasters || v.count("fail")+v.count("fail?") > 0 {
			return fmt.Errorf("%d masters, %d replicas: %w", masters, replicas, errNotYet)
		}
		return nil
	})
	for _, s := range g.nodes {
		if role, _, rerr := s.role(); err == nil && (rerr != nil || role == "slave") {
			err = s.following()
		}
	}
	return err
}

func startCluster(tb testing.TB, o RedisOptions) *RedisClusterGroup {
	tb.Helper()
	g := &RedisClusterGroup{group: group{tb: tb, options: o}}
	if err := g.form(); err != nil {
		g.end()
		tb.Fatalf("testserver: %v", err)
	}
	return g
}

// form starts the nodes and makes a cluster of them.
func (g *RedisClusterGroup) form() error {
	for range 2 * clusterMasters {
		s, err := g.add(g.nodeArgs)
		if err != nil {
			return err
		}
		id, err := s.Do("CLUSTER", "MYID")
		if err != nil {
			return err
		}
		g.ids = append(g.ids, fmt.Sprint(id))
	}
	if err := eachDo(g.introductions()); err != nil {
		return err
	}
	for i, s := range g.nodes[clusterMasters:] {
		// A node that hasn't met its master yet refuses.
		err := await(func() error {
			_, err := s.poll("CLUSTER", "REPLICATE", g.ids[i])
			return err
		}, s.Process)
		if err != nil {
			return err
		}
	}
	return await(g.whole, g.processes()...)
}

// introductions give each master its slots, and let every node meet every other: by
// gossip alone it takes them longer.
func (g *RedisClusterGroup) introductions() []command {
	var list []command
	for i, s := range g.nodes[:clusterMasters] {
		first, end := i*ClusterSlots/clusterMasters, (i+1)*ClusterSlots/clusterMasters
		list = append(list,
			to(s, "CLUSTER", "ADDSLOTSRANGE", strconv.Itoa(first), strconv.Itoa(end-1)),
			to(s, "CLUSTER", "SET-CONFIG-EPOCH", strconv.Itoa(i+1)))
	}
	for i, s := range g.nodes {
		for _, other := range g.nodes[:i] {
			host, port, _ := net.SplitHostPort(other.Public())
			list = append(list, to(s, "CLUSTER", "MEET", host, port, strconv.Itoa(other.bus)))
		}
	}
	return list
}

func (g *RedisClusterGroup) nodeArgs(s *RedisServer) ([]string, error) {
	host, port, err := g.options.front(s.Addr())
	if err != nil {
		return nil, err
	}
	s.public = net.JoinHostPort(host, port)
	if s.bus, err = freePort(); err != nil {
		return nil, err
	}
	announced := "--cluster-announce-port"
	if g.options.TLS {
		announced = "--cluster-announce-tls-port"
	}
	return []string{
		"--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf", "--cluster-port", strconv.Itoa(s.bus),
		"--cluster-announce-ip", host, announced, port, "--cluster-node-timeout", strconv.Itoa(clusterTimeout),
		"--cluster-replica-validity-factor", "0", "--cluster-allow-replica-migration", "no",
	}, nil
}

// group is servers that belong together.
type group struct {
	tb      testing.TB
	options RedisOptions
	nodes   []*RedisServer // those that keep data
}

// add makes a server of the group and starts it; more returns its further options.
func (g *group) add(more func(s *RedisServer) ([]string, error)) (*RedisServer, error) {
	s := newRedis(g.tb)
	if err := g.options.start(s, more); err != nil {
		s.end()
		return nil, err
	}
	g.nodes = append(g.nodes, s)
	return s, nil
}

// Nodes returns the servers that keep data, in the order in which they were started.
func (g *group) Nodes() []*RedisServer { return g.nodes }

// node returns the one that others know by an address.
func (g *group) node(public string) *RedisServer {
	for _, s := range g.nodes {
		if s.Public() == public {
			return s
		}
	}
	return nil
}

func (g *group) end() {
	for _, s := range g.nodes {
		s.end()
	}
}

// processes returns those of the nodes.
func (g *group) processes() (all []*Process) {
	for _, s := range g.nodes {
		all = append(all, s.Process)
	}
	return all
}

// await returns when cond does without an error, and fails the test if that takes too
// long, or if one of the processes that it needs has ended.
func (g *group) await(what string, cond func() error, needs ...*Process) {
	g.tb.Helper()
	if err := await(cond, needs...); err != nil {
		g.tb.Fatalf("testserver: %s: %v", what, err)
	}
}

func await(cond func() error, needs ...*Process) error {
	deadline := time.Now().Add(startTimeout)
	for {
		err := cond()
		if err == nil || time.Now().After(deadline) {
			return err
		}
		for _, p := range needs {
			if !p.alive() {
				return fmt.Errorf("%s has ended: %w: %s", p.path, err, p.log())
			}
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// must sends a command that has to succeed.
func (g *group) must(s *RedisServer, args ...string) any {
	g.tb.Helper()
	reply, err := s.Do(args...)
	if err != nil {
		g.tb.Fatalf("testserver: %v: %v", args, err)
	}
	return reply
}

// eachDo sends a list of commands, each to a server.
func eachDo(commands []command) error {
	for _, c := range commands {
		if _, err := c.to.Do(c.args...); err != nil {
			return fmt.Errorf("%v: %w", c.args, err)
		}
	}
	return nil
}

type command struct {
	to   *RedisServer
	args []string
}

func to(s *RedisServer, args ...string) command { return command{s, args} }

var errNotYet = errors.New("not yet")

// role returns the answer to ROLE: "master", or "slave" and the state of its link.
func (s *RedisServer) role() (role, link string, err error) {
	reply, err := s.poll("ROLE")
	if err != nil {
		return "", "", err
	}
	list, _ := reply.([]any)
	if len(list) == 0 {
		return "", "", fmt.Errorf("ROLE answers %v", reply)
	}
	role, _ = list[0].(string)
	if role == "slave" && len(list) > 3 {
		link, _ = list[3].(string)
	}
	return role, link, nil
}

// following succeeds if the server is a replica that has all that its master has.
func (s *RedisServer) following() error {
	role, link, err := s.role()
	if err == nil && (role != "slave" || link != "connected") {
		err = fmt.Errorf("%s is %s %s: %w", s.Addr(), role, link, errNotYet)
	}
	return err
}

// SlotMove is a slot on its way from one master to another. Meanwhile the old one
// answers ASK for keys that it doesn't have, and TRYAGAIN to commands on several keys
// of which it has but some.
type SlotMove struct {
	c        *RedisClusterGroup
	slot     int
	from, to *RedisServer
}

// MoveSlot moves a slot with all its keys to another master.
func (g *RedisClusterGroup) MoveSlot(slot int, to *RedisServer) {
	g.tb.Helper()
	g.StartMove(slot, to).Finish()
}

// StartMove begins to move a slot to another master; no key has moved when it returns.
func (g *RedisClusterGroup) StartMove(slot int, to *RedisServer) *SlotMove {
	g.tb.Helper()
	m := &SlotMove{c: g, slot: slot, from: g.Owner(slot), to: to}
	g.must(to, m.set("IMPORTING", g.id(m.from))...)
	g.must(m.from, m.set("MIGRATING", g.id(to))...)
	return m
}

func (m *SlotMove) set(args ...string) []string {
	return append([]string{"CLUSTER", "SETSLOT", strconv.Itoa(m.slot)}, args...)
}

// Keys moves these keys of the slot, which must exist.
func (m *SlotMove) Keys(keys ...string) {
	m.c.tb.Helper()
	host, port, err := net.SplitHostPort(m.to.Addr())
	if err != nil {
		m.c.tb.Fatalf("testserver: %v", err)
	}
	args := []string{"MIGRATE", host, port, "", "0", strconv.FormatInt(startTimeout.Milliseconds(), 10)}
	switch {
	case m.to.user != "":
		args = append(args, "AUTH2", m.to.user, m.to.password)
	case m.to.password != "":
		args = append(args, "AUTH", m.to.password)
	}
	args = append(args, "KEYS")
	if reply := m.c.must(m.from, append(args, keys...)...); reply != "OK" {
		m.c.tb.Fatalf("testserver: migrating %q: %v", keys, reply)
	}
}

// Finish moves the keys that are left, and returns when all nodes know where the slot
// is now.
func (m *SlotMove) Finish() {
	m.c.tb.Helper()
	for {
		left, _ := m.c.must(m.from, "CLUSTER", "GETKEYSINSLOT", strconv.Itoa(m.slot), "100").([]any)
		if len(left) == 0 {
			break
		}
		keys := make([]string, len(left))
		for i, key := range left {
			keys[i] = fmt.Sprint(key)
		}
		m.Keys(keys...)
	}
	m.give()
}

// Cancel ends the move where no key has moved; the slot stays where it was.
func (m *SlotMove) Cancel() {
	m.c.tb.Helper()
	m.c.must(m.from, m.set("STABLE")...)
	m.c.must(m.to, m.set("STABLE")...)
}

// give tells all masters who owns the slot, the new owner first; replicas learn it
// from theirs.
func (m *SlotMove) give() {
	m.c.tb.Helper()
	id := m.c.id(m.to)
	masters := append([]*RedisServer{m.to, m.from}, m.c.Masters()...)
	for _, s := range masters {
		m.c.must(s, m.set("NODE", id)...)
	}
	m.c.await("a slot doesn't move", func() error {
		return m.c.all(func(v view) error {
			if v.owner(m.slot) != id {
				return errNotYet
			}
			return nil
		})
	})
}
