package zklock_test

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/adler32"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/backend/zklock"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/locktest"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
	"github.com/distlock/distlock/internal/zk"
)

// An admin deletes the nodes of a lock one after the other. A waiter goes on waiting, a holder is notified of the loss, and
// fences increase even after the lock's path was deleted.
func TestNodesAreDeleted(t *testing.T) {
	t.Parallel()
	srv := testserver.ZooKeeper(t, testserver.ZooKeeperOptions{})
	admin := must.Get(zk.Dial(t.Context(), zk.Config{Servers: []string{srv.Addr()}, Timeout: time.Minute}))(t)
	defer admin.Close(context.Background())
	var clients [3]*distlock.Client
	for i := range clients {
		clients[i] = must.Get(distlock.New(must.Get(zklock.Open(t.Context(), srv.URL()+"?timeout=2m"))(t), locktest.Patient()))(t)
		defer clients[i].Close()
	}
	lock := func(i int) *distlock.Lease { return must.Get(clients[i].Mutex("deleted").Lock(t.Context()))(t) }
	nodes := func(n int) (names []string) {
		t.Helper()
		for end := time.Now().Add(2 * time.Minute); ; time.Sleep(time.Millisecond) {
			names = must.Get(children(admin, "/deleted"))(t)
			if len(names) == n {
				break
			} else if time.Now().After(end) {
				t.Fatalf("nodes %q, want %d", names, n)
			}
		}
		const digits = 10
		slices.SortFunc(names, func(a, b string) int { return cmp.Compare(a[len(a)-digits:], b[len(b)-digits:]) })
		return names
	}
	holder := lock(0)
	first := nodes(1)[0]
	got := make(chan *distlock.Lease, 1)
	go func() {
		lease, err := clients[1].Mutex("deleted").Lock(t.Context())
		expect.OK(t, err, "a waiter whose node was deleted")
		got <- lease
	}()
	for range 3 {
		waiting := nodes(2)
		must.OK(t, admin.Delete(t.Context(), "/deleted/"+waiting[1], -1))
		if waiting[0] != first || len(got) > 0 {
			t.Fatalf("the holder's node was %s, now it is %s; %d waiters got the lock", first, waiting[0], len(got))
		}
	}
	nodes(2)
	must.OK(t, admin.Delete(t.Context(), "/deleted/"+first, -1))
	<-holder.Context().Done()
	expect.Be(t, holder.Err(), distlock.ErrLost, "the holder's node was deleted")
	next := <-got
	next.Unlock(t.Context())
	nodes(0)
	must.OK(t, admin.Delete(t.Context(), "/deleted", -1))
	last := lock(2)
	last.Unlock(t.Context())
	if a, b, c := holder.Fence(), next.Fence(), last.Fence(); a >= b || b >= c {
		t.Errorf("fences %d, %d, %d", a, b, c)
	}
}

func children(c *zk.Conn, path string) ([]string, error) {
	names, _, err := c.Children(context.Background(), path)
	return names, err
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
