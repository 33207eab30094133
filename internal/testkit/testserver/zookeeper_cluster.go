package testserver

import (
	"encoding/binary"
	"fmt"
	"hash/adler32"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// ZooKeeperGroup is an ensemble of three servers. A leader that dies is replaced in
// about a second, one that is silent in about three.
type ZooKeeperGroup struct {
	ensemble[*ZooKeeperServer]
	links *links
}

// ZooKeeperCluster starts an ensemble of the test's own, and returns when all its
// servers serve. It takes about three seconds.
func ZooKeeperCluster(tb testing.TB, o ZooKeeperOptions) *ZooKeeperGroup {
	tb.Helper()
	g := startZooKeeperCluster(tb, o)
	tb.Cleanup(g.end)
	return g
}

var sharedZooKeeperCluster shared[*ZooKeeperGroup]

// SharedZooKeeperCluster returns an ensemble that all tests of the process use: none may stop
// any of it, or cut it in parts.
func SharedZooKeeperCluster(tb testing.TB) *ZooKeeperGroup {
	tb.Helper()
	g := *sharedZooKeeperCluster.get(func() *ZooKeeperGroup { return startZooKeeperCluster(tb, ZooKeeperOptions{}) })
	g.tb = tb
	return &g
}

// URL returns how zklock.Open reaches the ensemble.
func (g *ZooKeeperGroup) URL() string { return "zk://" + strings.Join(g.Addrs(), ",") }

// AwaitReady returns when all members serve: after a Start, say.
func (g *ZooKeeperGroup) AwaitReady() {
	g.tb.Helper()
	if err := await(g.whole, g.processes()...); err != nil {
		g.tb.Fatalf("testserver: the ensemble is not whole: %v", err)
	}
}

func (g *ZooKeeperGroup) whole() error {
	for _, s := range g.members {
		if err := s.ok(); err != nil {
			return err
		}
	}
	return nil
}

// vote returns the leader that another member follows; not asked is old, and it is not
// that.
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
func (g *ZooKeeperGroup) Isolate(s *ZooKeeperServer) { g.links.isolate(s) }

// Heal lets all members reach each other again.
func (g *ZooKeeperGroup) Heal() { g.links.heal() }

func (g *ZooKeeperGroup) end() {
	for _, s := range g.members {
		s.end()
	}
	g.links.end()
}

func startZooKeeperCluster(tb testing.TB, o ZooKeeperOptions) *ZooKeeperGroup {
	tb.Helper()
	g := &ZooKeeperGroup{links: &links{}}
	g.tb, g.elected = tb, g.vote
	for range 3 {
		g.members = append(g.members, newZooKeeper(tb))
	}
	if err := launch(func(int) error { return g.start(o) }); err != nil {
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
		proxy, err := g.links.proxy(g.tb, s)
		if err != nil {
			return err
		}
		own := o
		own.Args = append([]string{
			"-DsocksProxyHost=127.0.0.1", "-DsocksProxyPort=" + strconv.Itoa(proxy), "-DsocksNonProxyHosts=", // not even this host
		}, o.Args...)
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
	g.links.owner = map[string]*ZooKeeperServer{}
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
			g.links.owner[loopback(ports[j])] = s
		}
		s.port = ports[0]
		config = append(config, fmt.Sprintf("server.%d=127.0.0.1:%d:%d", i+1, ports[1], ports[2]))
	}
	o.Config = append(config, o.Config...)
	return nil
}

// ensemble is servers of which one leads; a leader that dies is replaced.
type ensemble[S interface {
	comparable
	Addr() string
	process() *Process
}] struct {
	tb      testing.TB
	members []S
	elected func(old S) (S, error) // the leader of the others, if it is not old
}

// Members returns the servers, in the order in which they were started.
func (g *ensemble[S]) Members() []S { return g.members }

// Addrs returns the place where clients reach the members.
func (g *ensemble[S]) Addrs() []string {
	var addrs []string
	for _, s := range g.members {
		addrs = append(addrs, s.Addr())
	}
	return addrs
}

func (g *ensemble[S]) processes() (all []*Process) {
	for _, s := range g.members {
		all = append(all, s.process())
	}
	return all
}

// Leader returns the member that a majority follows.
func (g *ensemble[S]) Leader() S {
	g.tb.Helper()
	var nobody S
	return g.AwaitLeader(nobody)
}

// Followers returns the others.
func (g *ensemble[S]) Followers() []S {
	g.tb.Helper()
	return g.without(g.Leader())
}

// AwaitLeader returns the new leader once the others have one that is not old, and
// another member follows it.
func (g *ensemble[S]) AwaitLeader(old S) S {
	g.tb.Helper()
	var leader S
	err := await(func() (err error) {
		leader, err = g.elected(old)
		return err
	})
	if err != nil {
		g.tb.Fatalf("testserver: no leader: %v", err)
	}
	return leader
}

func (g *ensemble[S]) without(s S) []S {
	return slices.DeleteFunc(slices.Clone(g.members), func(m S) bool { return m == s })
}

// ZooKeeperCountedTo starts a server on which a node exists whose next sequential child
// gets a number: one gets there by two thousand million locks, or by writing the
// server's log.
func ZooKeeperCountedTo(tb testing.TB, path string, number int32) *ZooKeeperServer {
	tb.Helper()
	s := ZooKeeper(tb, ZooKeeperOptions{})
	s.Stop() // it has written an empty snapshot, upon which the log builds
	log := filepath.Join(s.data(), "version-2", "log.1")
	if err := os.WriteFile(log, countedLog(path, number), 0o600); err != nil {
		tb.Fatal(err)
	}
	s.Start()
	return s
}

// Parts of ZooKeeper's log, which is big-endian.
const (
	logMagic     = "ZKLG"
	logVersion   = 2
	logEnd       = 'B' // of each record
	logCreate    = 1
	logDelete    = 2
	logEveryone  = "\x00\x00\x00\x01\x00\x00\x00\x1f\x00\x00\x00\x05world\x00\x00\x00\x06anyone"
	logNoData    = "\xff\xff\xff\xff"
	logPermanent = "\x00"
)

// countedLog makes a node and below it one that says how many there were, and deletes that.
func countedLog(path string, number int32) []byte {
	l := &serverLog{b: number64(number32([]byte(logMagic), logVersion), 0)}
	last := fmt.Sprintf("%s/%d", path, number)
	l.create(path, 1)
	l.create(last, number)
	l.add(logDelete, text(nil, last))
	return l.b
}

// serverLog is a transaction log, which ZooKeeper replays when it starts.
type serverLog struct {
	b    []byte
	zxid uint64
}

func (l *serverLog) create(path string, count int32) {
	body := append(text(nil, path), logNoData+logEveryone+logPermanent...)
	l.add(logCreate, number32(body, uint32(count)))
}

func (l *serverLog) add(kind uint32, body []byte) {
	l.zxid++
	txn := number32(number64(nil, 0), 0) // a request of no session
	txn = number64(number64(txn, l.zxid), 1)
	txn = append(number32(txn, kind), body...)
	l.b = number64(l.b, uint64(adler32.Checksum(txn)))
	l.b = append(number32(l.b, uint32(len(txn))), txn...)
	l.b = append(l.b, logEnd)
}

func number32(b []byte, v uint32) []byte { return binary.BigEndian.AppendUint32(b, v) }

func number64(b []byte, v uint64) []byte { return binary.BigEndian.AppendUint64(b, v) }

func text(b []byte, s string) []byte { return append(number32(b, uint32(len(s))), s...) }
