package zklock_test

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/adler32"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/backend/zklock"
	"github.com/distlock/distlock/internal/testkit/exclusion"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/faultproxy"
	"github.com/distlock/distlock/internal/testkit/locktest"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
	"github.com/distlock/distlock/internal/zk"
)

const (
	hardTTL  = 1500 * time.Millisecond
	keptTTL  = 2 * time.Minute // outlives every fault
	patience = 3 * time.Minute
)

// program is a client with a proxy of its own to each server.
type program struct {
	name  string
	ways  []*faultproxy.Proxy
	locks *distlock.Client
}

func (p *program) each(do func(*faultproxy.Proxy)) {
	for _, w := range p.ways {
		do(w)
	}
}

// hard runs programs that contend for a few locks while servers and networks fail.
type hard struct {
	*exclusion.Checker
	t        *testing.T
	g        *testserver.ZooKeeperGroup
	admin    *zk.Conn
	programs []*program
	keeper   *program
	kept     *distlock.Lease // held by the keeper throughout
}

// contended is the lock that all programs contend for.
const contended = "hard/hot"

func startHard(t *testing.T) *hard {
	t.Helper()
	h := &hard{Checker: exclusion.New(), t: t, g: testserver.ZooKeeperCluster(t, testserver.ZooKeeperOptions{})}
	h.admin = must.Get(zk.Dial(t.Context(), zk.Config{Servers: h.g.Addrs(), Timeout: keptTTL}))(t)
	t.Cleanup(func() { h.admin.Close(context.Background()) })
	for i := range 4 {
		h.programs = append(h.programs, h.open(fmt.Sprint("program ", i), hardTTL))
	}
	h.keeper = h.open("keeper", keptTTL)
	h.kept = must.Get(h.keeper.locks.Mutex("hard/kept").Lock(t.Context()))(t)
	h.Enter(h.keeper.name, h.kept)
	return h
}

func (h *hard) open(name string, ttl time.Duration) *program {
	h.t.Helper()
	p := &program{name: name}
	var hosts []string
	for _, addr := range h.g.Addrs() {
		w := faultproxy.New(h.t, addr)
		p.ways, hosts = append(p.ways, w), append(hosts, w.Addr())
	}
	b, err := zklock.Open(h.t.Context(), "zk://"+strings.Join(hosts, ",")+"?timeout=2m")
	if err != nil {
		h.t.Fatalf("%s: %v", name, err)
	}
	if p.locks, err = distlock.New(b, &distlock.Options{TTL: ttl}); err != nil {
		h.t.Fatalf("%s: %v", name, err)
	}
	return p
}

// work lets all programs contend until stop is called, which waits for them.
func (h *hard) work() (stop func()) {
	ctx, cancel := context.WithCancel(h.t.Context())
	var wg sync.WaitGroup
	contend := func(p *program, name string) {
		wg.Go(func() {
			for ctx.Err() == nil {
				h.Hold(ctx, p.name, p.locks.Mutex(name), time.Duration(1+rand.IntN(40))*time.Millisecond)
			}
		})
	}
	for i, p := range h.programs {
		contend(p, contended)
		contend(p, fmt.Sprint("hard/cold", i/2))
	}
	contend(h.programs[0], contended) // another goroutine of one program
	return func() { cancel(); wg.Wait() }
}

// goesOn waits until the lock has been acquired so many times more.
func (h *hard) goesOn(what string, times int) {
	h.t.Helper()
	began := time.Now()
	for range times {
		last := h.Fence(contended)
		h.await(what+": the lock is acquired", func() bool { return h.Fence(contended) != last })
	}
	h.t.Logf("%s: acquired %d times more within %v", what, times, time.Since(began).Round(time.Millisecond))
}

// day is one kind of failure.
type day struct {
	what string
	live func(*hard)
}

func TestLeaderIsKilled(t *testing.T) {
	t.Parallel()
	live(t, 30, day{"the leader is killed", killLeader})
}

func TestLongHardDays(t *testing.T) {
	live(t, 100, []day{
		{"the leader is killed", killLeader},
		{"the leader is silent", pauseLeader},
		{"the leader is cut off from the others", func(h *hard) { isolate(h, h.g.Leader()) }},
		{"a follower is cut off from the others", func(h *hard) { isolate(h, h.g.Followers()[0]) }},
		{"the holder is cut off", cutOffHolder},
		{"the holders move to other servers", moveHolder},
		{"an admin deletes nodes", deleteNodes},
		{"networks break all the time", storm},
	}...)
}

// live lets all programs contend while one thing fails after the other. Holds must exclude each
// other, and work must go on afterwards, with at least so many holds.
func live(t *testing.T, holds int, days ...day) {
	t.Helper()
	h := startHard(t)
	stop := h.work()
	h.goesOn("in peace", 5)
	for _, day := range days {
		day.live(h)
		h.goesOn(day.what, 5)
	}
	stop()
	expect.OK(t, h.kept.Err(), "a lock with a long TTL was lost")
	h.Judge(t, holds)
	h.end()
}

func killLeader(h *hard) {
	old := h.g.Leader()
	old.Kill()
	h.g.AwaitLeader(old)
	h.goesOn("on two servers", 3)
	old.Start()
	h.g.AwaitReady()
}

func pauseLeader(h *hard) {
	old := h.g.Leader()
	old.Pause()
	h.g.AwaitLeader(old)
	h.goesOn("with a new leader", 3)
	old.Resume()
	h.g.AwaitReady()
}

func isolate(h *hard, s *testserver.ZooKeeperServer) {
	h.g.Isolate(s)
	h.g.AwaitLeader(s)
	h.goesOn("without it", 3)
	h.g.Heal()
	h.g.AwaitReady()
}

// cutOffHolder cuts off holders in several ways.
func cutOffHolder(h *hard) {
	silent := h.programs[1]
	h.loses("silence", silent, func() { silent.each((*faultproxy.Proxy).Silence) })
	silent.each((*faultproxy.Proxy).Pass)
	h.losesWith("a follower that is cut off", h.programs[2], h.g.Followers()[0])
	h.losesWith("a leader that is cut off", h.programs[3], h.g.Leader())
}

// losesWith lets a program hold the lock while it reaches only one server, which is then isolated.
func (h *hard) losesWith(what string, p *program, s *testserver.ZooKeeperServer) {
	for i, other := range h.g.Members() {
		if other != s {
			p.ways[i].Silence()
		}
	}
	h.loses(what, p, func() { h.g.Isolate(s) })
	h.g.Heal()
	p.each((*faultproxy.Proxy).Pass)
	h.g.AwaitReady()
}

// loses lets a program hold the lock until cut has cut it off. The checker checks that the lease has
// ended before the next hold begins.
func (h *hard) loses(what string, p *program, cut func()) {
	h.t.Helper()
	ctx, cancel := context.WithCancel(h.t.Context())
	defer cancel()
	who := p.name + ", " + what
	go h.Hold(ctx, who, p.locks.Mutex(contended), patience)
	var lease *distlock.Lease
	h.await(what+": the lock", func() bool {
		var holder string
		holder, lease = h.Holder(contended)
		return holder == who
	})
	began := time.Now()
	cut()
	h.await(what+": the lease's end", func() bool { return lease.Context().Err() != nil })
	h.t.Logf("%s: the lease ended after %v", what, time.Since(began).Round(time.Millisecond))
	if err := lease.Err(); !errors.Is(err, distlock.ErrLost) {
		h.t.Errorf("%s: the lease ended with %v", what, err)
	}
	h.goesOn(what, 2)
}

func (h *hard) await(what string, is func() bool) {
	h.t.Helper()
	for end := time.Now().Add(patience); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			h.t.Fatalf("not after %v: %s", patience, what)
		}
	}
}

// moveHolder cuts all connections repeatedly: the sessions continue at other servers.
func moveHolder(h *hard) {
	for range 5 {
		for _, p := range h.programs {
			p.each((*faultproxy.Proxy).Cut)
		}
		h.goesOn("after a move", 1)
	}
}

// deleteNodes deletes the nodes of a lock one after the other. A waiter goes on waiting, a holder
// is notified of the loss, and fences increase even after the lock's path was deleted.
func deleteNodes(h *hard) {
	const name = "hard/deleted"
	holder := must.Get(h.programs[0].locks.Mutex(name).Lock(h.t.Context()))(h.t)
	first := h.nodes(name, 1)[0]
	got := make(chan *distlock.Lease, 1)
	go func() {
		lease, err := h.programs[1].locks.Mutex(name).Lock(h.t.Context())
		if err != nil {
			h.t.Errorf("a waiter whose node was deleted: %v", err)
		}
		got <- lease
	}()
	for range 3 {
		waiting := h.nodes(name, 2)
		h.delete(name + "/" + waiting[1])
		if waiting[0] != first || len(got) > 0 {
			h.t.Fatalf("the holder's node was %s, now it is %s; %d waiters got the lock", first, waiting[0], len(got))
		}
	}
	h.nodes(name, 2)
	h.delete(name + "/" + first)
	<-holder.Context().Done()
	expect.Be(h.t, holder.Err(), distlock.ErrLost, "the holder's node was deleted")
	next := <-got
	next.Unlock(h.t.Context())
	h.nodes(name, 0)
	h.delete(name)
	h.goesOn("after deletions", 1)
	last := must.Get(h.programs[2].locks.Mutex(name).Lock(h.t.Context()))(h.t)
	last.Unlock(h.t.Context())
	if a, b, c := holder.Fence(), next.Fence(), last.Fence(); a >= b || b >= c {
		h.t.Errorf("fences %d, %d, %d", a, b, c)
	}
}

// nodes waits until a lock has n nodes, and returns them in their order.
func (h *hard) nodes(name string, n int) []string {
	h.t.Helper()
	var names []string
	h.await(fmt.Sprintf("%d nodes of %s", n, name), func() bool {
		var err error
		if names, _, err = h.admin.Children(h.t.Context(), "/"+name); err != nil && !errors.Is(err, zk.ErrConnectionLoss) {
			h.t.Fatal(err)
		}
		return err == nil && len(names) == n
	})
	const digits = 10
	slices.SortFunc(names, func(a, b string) int { return cmp.Compare(a[len(a)-digits:], b[len(b)-digits:]) })
	return names
}

func (h *hard) delete(path string) {
	h.t.Helper()
	err := h.admin.Delete(h.t.Context(), "/"+path, -1)
	for errors.Is(err, zk.ErrConnectionLoss) { // on a busy machine
		if err = h.admin.Delete(h.t.Context(), "/"+path, -1); errors.Is(err, zk.ErrNoNode) {
			err = nil // by the call without an answer
		}
	}
	must.OK(h.t, err)
}

func storm(h *hard) {
	for i, p := range h.programs {
		p.each(func(w *faultproxy.Proxy) { w.Storm(uint64(i), 0.02, contended) })
	}
	h.goesOn("in the storm", 20)
	for _, p := range h.programs {
		p.each(func(w *faultproxy.Proxy) { w.Storm(0, 0, "") })
	}
}

// end closes all programs, and waits until none of their nodes is left.
func (h *hard) end() {
	h.kept.Unlock(h.t.Context())
	for _, p := range append(h.programs, h.keeper) {
		if err := p.locks.Close(); err != nil && !errors.Is(err, distlock.ErrUnavailable) { // what may be left is waited for
			h.t.Errorf("%s: close: %v", p.name, err)
		}
	}
	h.await("no nodes are left", func() bool { return len(h.left()) == 0 })
}

// left returns the nodes of all locks.
func (h *hard) left() (left []string) {
	locks, _, err := h.admin.Children(h.t.Context(), "/hard")
	for errors.Is(err, zk.ErrConnectionLoss) {
		locks, _, err = h.admin.Children(h.t.Context(), "/hard")
	}
	if err != nil {
		h.t.Fatal(err)
	}
	for _, lock := range locks {
		names, _, err := h.admin.Children(h.t.Context(), "/hard/"+lock)
		if errors.Is(err, zk.ErrConnectionLoss) {
			return []string{"unknown"}
		}
		if err != nil && !errors.Is(err, zk.ErrNoNode) {
			h.t.Fatal(err)
		}
		left = append(left, names...)
	}
	return left
}

// ZooKeeper's sequence numbers have 31 bits. Then the last one is repeated, and concurrent creates
// get negative numbers: the order of the nodes is lost, and Curator's clients would hold side by
// side. A lock is refused before that, while waiters still have numbers left.
func TestSequenceNumbersRunOut(t *testing.T) {
	t.Parallel()
	const last = 1<<31 - 1<<20 - 1
	srv := serverCountedTo(t, "/full", last)
	b := must.Get(zklock.Open(t.Context(), srv.URL()+"?timeout=2m"))(t)
	c := must.Get(distlock.New(b, locktest.Patient()))(t)
	defer c.Close()
	lease, err := c.Mutex("full").Lock(t.Context())
	must.OK(t, err, "the last number")
	expect.OK(t, lease.Unlock(t.Context()))
	for range 2 {
		if _, err := c.Mutex("full").Lock(t.Context()); !errors.Is(err, distlock.ErrInvalid) || !strings.Contains(err.Error(), `sequence numbers are used up at "/full"`) {
			t.Errorf("beyond: %v", err)
		}
	}
	if lease, err = c.Mutex("other").Lock(t.Context()); err != nil {
		t.Errorf("another lock: %v", err)
	}
	lease.Unlock(t.Context())
	admin := must.Get(zk.Dial(t.Context(), zk.Config{Servers: []string{srv.Addr()}}))(t)
	defer admin.Close(context.Background())
	if left, _, err := admin.Children(t.Context(), "/full"); err != nil || len(left) > 0 {
		t.Errorf("left: %q, %v", left, err)
	}
}

// serverCountedTo starts a server on which a node exists whose next sequential child
// gets a number: one gets there by two thousand million locks, or by writing the
// server's log.
func serverCountedTo(tb testing.TB, path string, number int32) *testserver.ZooKeeperServer {
	tb.Helper()
	s := testserver.ZooKeeper(tb, testserver.ZooKeeperOptions{})
	s.Stop() // it has written an empty snapshot, upon which the log builds
	log := filepath.Join(s.Dir(), "data", "version-2", "log.1")
	must.OK(tb, os.WriteFile(log, countedLog(path, number), 0o600))
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
