package testserver

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// ClusterSlots is how many slots a Redis Cluster has.
const ClusterSlots = 16384

// clusterTimeout is after how many ms a node that doesn't answer counts as failing. None does in a cluster that tests share: there
// a machine that stalls must cause no failover.
const (
	clusterTimeout       = 1500
	sharedClusterTimeout = 20_000
)

// clusterMasters is how many nodes start as masters; as many start as replicas.
const clusterMasters = 3

// RedisClusterGroup is a Redis Cluster of three masters with a replica each. A master
// that dies is replaced in about three seconds.
type RedisClusterGroup struct {
	group[*RedisServer]
	options RedisOptions
	ids     []string // of members
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
	g := *sharedCluster.get(func() *RedisClusterGroup {
		return startCluster(tb, RedisOptions{Args: []string{"--cluster-node-timeout", strconv.Itoa(sharedClusterTimeout)}})
	})
	g.tb = tb
	return &g
}

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

// partner returns the other node of the same data: a master's replica, a replica's master.
func (g *RedisClusterGroup) partner(s *RedisServer) *RedisServer {
	i := slices.Index(g.members, s)
	return g.members[(i+clusterMasters)%len(g.members)]
}

// Failover makes the replica of a master take its place, in agreement with it, and
// returns that one.
func (g *RedisClusterGroup) Failover(master *RedisServer) *RedisServer {
	g.tb.Helper()
	replica := g.partner(master)
	g.must(replica, "CLUSTER", "FAILOVER")
	return g.AwaitFailover(master)
}

// ForceFailover is Failover without the master's agreement: what its replica has not received is lost.
func (g *RedisClusterGroup) ForceFailover(master *RedisServer) *RedisServer {
	g.tb.Helper()
	g.must(g.partner(master), "CLUSTER", "FAILOVER", "FORCE")
	return g.AwaitFailover(master)
}

// AwaitFailover returns the node that took over from a master, once all that live know
// it and take commands.
func (g *RedisClusterGroup) AwaitFailover(old *RedisServer) *RedisServer {
	g.tb.Helper()
	successor := g.partner(old)
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
	i := slices.IndexFunc(g.members, func(s *RedisServer) bool { return s.alive() })
	return g.members[max(i, 0)]
}

func (g *RedisClusterGroup) id(s *RedisServer) string { return g.ids[slices.Index(g.members, s)] }

func (g *RedisClusterGroup) byID(id string) *RedisServer {
	if i := slices.Index(g.ids, id); i >= 0 {
		return g.members[i]
	}
	return nil
}

// all asks every node that lives: each must take commands, and see what check wants.
func (g *RedisClusterGroup) all(check func(view) error) error {
	for _, s := range g.members {
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
		if masters != clusterMasters || replicas != len(g.members)-clusterMasters || v.count("fail")+v.count("fail?") > 0 {
			return fmt.Errorf("%d masters, %d replicas: %w", masters, replicas, errNotYet)
		}
		return nil
	})
	for _, s := range g.members {
		if role, _, rerr := s.role(); err == nil && (rerr != nil || role == "slave") {
			err = s.following()
		}
	}
	return err
}

func startCluster(tb testing.TB, o RedisOptions) *RedisClusterGroup {
	tb.Helper()
	o.Args = append([]string{"--cluster-node-timeout", strconv.Itoa(clusterTimeout)}, o.Args...)
	g := &RedisClusterGroup{options: o}
	g.tb = tb
	if err := g.form(); err != nil {
		g.end()
		tb.Fatalf("testserver: %v", err)
	}
	return g
}

// form starts the nodes and makes a cluster of them.
func (g *RedisClusterGroup) form() error {
	for range 2 * clusterMasters {
		if err := g.add(); err != nil {
			return err
		}
	}
	for i, s := range g.members[clusterMasters:] {
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

// add starts a node, which is a master with its slots or becomes a replica. It meets every other: by
// gossip alone that takes longer.
func (g *RedisClusterGroup) add() error {
	s := newRedis(g.tb, "redis", redisServer)
	s.second = busPort
	i := len(g.members)
	g.members = append(g.members, s)
	if err := g.options.launch(s, g.nodeArgs); err != nil {
		return err
	}
	id, err := s.Do("CLUSTER", "MYID")
	if err != nil {
		return err
	}
	g.ids = append(g.ids, fmt.Sprint(id))
	var commands [][]string
	if i < clusterMasters {
		slots := []string{"CLUSTER", "ADDSLOTS"} // ADDSLOTSRANGE came with 7.0
		for slot := i * ClusterSlots / clusterMasters; slot < (i+1)*ClusterSlots/clusterMasters; slot++ {
			slots = append(slots, strconv.Itoa(slot))
		}
		commands = append(commands, slots, []string{"CLUSTER", "SET-CONFIG-EPOCH", strconv.Itoa(i + 1)})
	}
	for _, other := range g.members[:i] {
		host, port, _ := net.SplitHostPort(other.Public())
		commands = append(commands, []string{"CLUSTER", "MEET", host, port, strconv.Itoa(other.port + other.second)})
	}
	for _, args := range commands {
		if _, err := s.Do(args...); err != nil {
			return fmt.Errorf("%v: %w", args, err)
		}
	}
	return nil
}

// busPort is how far above its own the port is on which a node talks with the others: those before 7.0 can have no other.
const busPort = 10_000

func (g *RedisClusterGroup) nodeArgs(host, port string) ([]string, error) {
	announced := "--cluster-announce-port"
	if g.options.TLS {
		announced = "--cluster-announce-tls-port"
	}
	return []string{
		"--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf",
		"--cluster-announce-ip", host, announced, port,
		"--cluster-replica-validity-factor", "0", "--cluster-allow-replica-migration", "no",
	}, nil
}

// must sends a command that has to succeed.
func (g *RedisClusterGroup) must(s *RedisServer, args ...string) any {
	g.tb.Helper()
	reply, err := s.Do(args...)
	if err != nil {
		g.tb.Fatalf("testserver: %v: %v", args, err)
	}
	return reply
}

// view is the cluster as one of its nodes sees it.
type view []nodeLine

// nodeLine is a node, as CLUSTER NODES describes it.
type nodeLine struct {
	id    string
	flags []string
	slots [][2]int // first and last of each range
}

func (n *nodeLine) is(flag string) bool { return slices.Contains(n.flags, flag) }

func clusterView(s *RedisServer) (view, error) {
	reply, err := s.poll("CLUSTER", "NODES")
	if err != nil {
		return nil, err
	}
	var v view
	for _, line := range strings.Split(fmt.Sprint(reply), "\n") {
		if fields := strings.Fields(line); len(fields) >= 8 {
			v = append(v, nodeLine{id: fields[0], flags: strings.Split(fields[2], ","), slots: slotRanges(fields[8:])})
		}
	}
	return v, nil
}

// slotRanges reads "7", "0-5460", and leaves out what is on the move: "[7->-id]".
func slotRanges(fields []string) [][2]int {
	var ranges [][2]int
	for _, f := range fields {
		first, last, ok := strings.Cut(f, "-")
		if !ok {
			last = first
		}
		a, err := strconv.Atoi(first)
		b, err2 := strconv.Atoi(last)
		if err == nil && err2 == nil {
			ranges = append(ranges, [2]int{a, b})
		}
	}
	return ranges
}

func (v view) node(id string) *nodeLine {
	i := slices.IndexFunc(v, func(n nodeLine) bool { return n.id == id })
	if i < 0 {
		return nil
	}
	return &v[i]
}

func (v view) count(flag string) int {
	n := 0
	for i := range v {
		if v[i].is(flag) {
			n++
		}
	}
	return n
}

// owner returns the id of the node that a slot belongs to.
func (v view) owner(slot int) string {
	for _, n := range v {
		for _, r := range n.slots {
			if r[0] <= slot && slot <= r[1] && !n.is("fail") {
				return n.id
			}
		}
	}
	return ""
}

// takesCommands succeeds if a node finds its cluster in order.
func takesCommands(s *RedisServer) error {
	reply, err := s.poll("CLUSTER", "INFO")
	if err == nil && !strings.Contains(fmt.Sprint(reply), "cluster_state:ok") {
		err = fmt.Errorf("%s says the cluster is down: %w", s.Addr(), errNotYet)
	}
	return err
}

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

// Keys moves those of these keys of the slot that exist.
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
	if reply := m.c.must(m.from, append(args, keys...)...); reply != "OK" && reply != "NOKEY" {
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
