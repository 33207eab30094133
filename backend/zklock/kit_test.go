package zklock

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/faultproxy"
	"github.com/distlock/distlock/internal/testkit/locktest"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
	"github.com/distlock/distlock/internal/zk"
)

var (
	acquire    = locktest.Acquire
	release    = locktest.Release
	refused    = locktest.Refused
	eventually = locktest.Eventually
)

// patience bounds how long tests wait, for a loaded machine.
const patience = 2 * time.Minute

// patiently gives a URL's Open the time that a loaded machine needs.
func patiently(url string) string {
	if strings.Contains(url, "?") {
		return url + "&timeout=2m"
	}
	return url + "?timeout=2m"
}

func open(t testing.TB, url string) *Backend {
	t.Helper()
	b := must.Get(Open(t.Context(), patiently(url)))(t)
	t.Cleanup(func() { b.Close() })
	return b
}

// pair opens two backends of one server.
func pair(t testing.TB) (a, b *Backend) {
	t.Helper()
	url := testserver.SharedZooKeeper(t).URL()
	return open(t, url), open(t, url)
}

// dial opens a session of another program.
func dial(t testing.TB, addr string, timeout time.Duration) *zk.Conn {
	t.Helper()
	c := must.Get(zk.Dial(t.Context(), zk.Config{Servers: []string{addr}, Timeout: timeout}))(t)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		c.Close(ctx)
	})
	return c
}

func admin(t testing.TB) *zk.Conn {
	t.Helper()
	return dial(t, testserver.SharedZooKeeper(t).Addr(), 20*time.Second)
}

// request makes a queueing request of a new Owner. Without a name it gets a new one.
func request(name string, mode driver.Mode) driver.Request {
	if name == "" {
		name = "test " + driver.NewOwner()
	}
	return driver.Request{
		Hold:   driver.Hold{Name: name, Owner: driver.NewOwner(), Mode: mode, TTL: 2 * time.Minute},
		Fences: 1, Limit: 2, Queue: true,
	}
}

func signalled(t testing.TB, what string, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(patience):
		t.Fatalf("never happened: %s", what)
	}
}

// nodes lists the lock nodes below a path.
func nodes(t testing.TB, c *zk.Conn, path string) nodeList {
	t.Helper()
	children, _, err := c.CommitAndList(t.Context(), path)
	if err != nil && !errors.Is(err, zk.ErrNoNode) {
		t.Fatal(err)
	}
	return readListing(children).nodes
}

// remove deletes a node, as an operator would.
func remove(t testing.TB, c *zk.Conn, path string) {
	t.Helper()
	must.OK(t, c.Delete(t.Context(), path, -1))
}

// makeNode makes a node and its parents, as another program would.
func makeNode(t testing.TB, c *zk.Conn, path, data string, mode zk.Mode) string {
	t.Helper()
	for {
		made, _, err := c.Create(t.Context(), path, []byte(data), mode)
		if !errors.Is(err, zk.ErrNoNode) {
			if err != nil && !errors.Is(err, zk.ErrNodeExists) {
				t.Fatal(err)
			}
			return made
		}
		makeNode(t, c, path[:len(path)-len(nodeName(path))-1], "", zk.Container)
	}
}

func TestMain(m *testing.M) { os.Exit(testserver.Run(m)) }

// entrance is how programs of one user reach locks of their own, until that is withdrawn.
type entrance struct {
	url      string
	withdraw func() (restore func())
}

// entrances make entrances whose rights, or whose login, can be withdrawn.
var entrances = map[string]func(t *testing.T) entrance{"rights": withRights, "login": withLogin}

// withRights returns an entrance whose user loses its rights to all nodes, and its connections.
func withRights(t *testing.T) entrance {
	t.Helper()
	srv, op, chroot := testserver.SharedZooKeeper(t), admin(t), "/rights-"+driver.NewOwner()
	makeNode(t, op, chroot, "", zk.Persistent)
	p := faultproxy.New(t, srv.Addr())
	var mu sync.Mutex
	withdrawn := map[string]int{} // how often
	change := func(by int, paths []string, perms uint32) {
		mu.Lock()
		defer mu.Unlock()
		var changed []string
		for _, path := range paths {
			if withdrawn[path] += by; withdrawn[path] == 0 || by > 0 {
				changed = append(changed, path)
			}
		}
		setACL(t, srv.Addr(), perms, "", "", changed...)
	}
	return entrance{"zk://app:password@" + p.Addr() + chroot, func() func() {
		paths := tree(t, op, chroot)
		change(1, paths, 0x10)
		p.Cut()
		return func() { change(-1, paths, 0x1f) }
	}}
}

// tree returns all paths from one on.
func tree(t *testing.T, c *zk.Conn, path string) []string {
	t.Helper()
	paths := []string{path}
	names, _, err := c.CommitAndList(t.Context(), path)
	if err != nil && !errors.Is(err, zk.ErrNoNode) && !errors.Is(err, zk.ErrNoAuth) {
		t.Fatal(err)
	}
	for _, name := range names {
		paths = append(paths, tree(t, c, path+"/"+name)...)
	}
	return paths
}

// setACL gives everybody these rights to nodes, or only the user of this digest. It logs in first, if login is not empty. Nodes
// that are gone are left out.
func setACL(t *testing.T, addr string, perms uint32, login, digest string, paths ...string) {
	t.Helper()
	c := must.Get(net.Dial("tcp", addr))(t)
	defer c.Close()
	long, text := binary.BigEndian.AppendUint32, func(b []byte, s string) []byte {
		return append(binary.BigEndian.AppendUint32(b, uint32(len(s))), s...)
	}
	exchange := func(b []byte) (answer []byte) {
		must.Get(c.Write(text(nil, string(b))))(t)
		var head [4]byte
		must.Get(io.ReadFull(c, head[:]))(t)
		answer = make([]byte, binary.BigEndian.Uint32(head[:]))
		must.Get(io.ReadFull(c, answer))(t)
		return answer
	}
	const timeout = 60_000
	exchange(text(append(long(make([]byte, 12), timeout), make([]byte, 8)...), string(make([]byte, 16)))) // a session of its own
	if login != "" {
		const xid, opAuth, kind = 0xfffffffc, 100, 0
		exchange(text(text(long(long(long(nil, xid), opAuth), kind), "digest"), login))
	}
	const opSetACL, opCloseSession, anyVersion, noNode = 7, 0xfffffff5, 0xffffffff, -101
	for i, path := range paths {
		scheme, id := "world", "anyone"
		if digest != "" {
			scheme, id = "digest", digest
		}
		b := text(long(long(nil, uint32(i+1)), opSetACL), path)
		b = text(text(long(long(b, 1), perms), scheme), id)
		answer := exchange(long(b, anyVersion))
		if code := int32(binary.BigEndian.Uint32(answer[12:])); code != 0 && code != noNode {
			t.Errorf("setACL %s: error %d", path, code)
		}
	}
	exchange(long(long(nil, uint32(len(paths)+1)), opCloseSession))
}

// withLogin returns an entrance that refuses the login as a server does, and ends the connection.
func withLogin(t *testing.T) entrance {
	t.Helper()
	srv, chroot := testserver.SharedZooKeeper(t), "/login-"+driver.NewOwner()
	makeNode(t, admin(t), chroot, "", zk.Persistent)
	var refusals atomic.Int32
	gate := loginGate(t, srv.Addr(), func(string) bool { return refusals.Load() == 0 })
	p := faultproxy.New(t, gate)
	return entrance{"zk://app:password@" + p.Addr() + chroot, func() func() {
		refusals.Add(1)
		p.Cut()
		return func() { refusals.Add(-1) }
	}}
}

// loginGate forwards connections to a server, and answers to a login (user:password) as a server that refuses it.
func loginGate(t *testing.T, server string, accepts func(login string) bool) (addr string) {
	t.Helper()
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go passGate(c, server, accepts)
		}
	}()
	return l.Addr().String()
}

func passGate(c net.Conn, server string, accepts func(login string) bool) {
	defer c.Close()
	s, err := net.Dial("tcp", server)
	if err != nil {
		return
	}
	defer s.Close()
	go func() { io.Copy(c, s); c.Close() }()
	login := []byte{0xff, 0xff, 0xff, 0xfc} // the number of such a request
	for {
		var head [4]byte
		if _, err := io.ReadFull(c, head[:]); err != nil {
			return
		}
		b := make([]byte, binary.BigEndian.Uint32(head[:]))
		if _, err := io.ReadFull(c, b); err != nil {
			return
		}
		if bytes.HasPrefix(b, login) && !accepts(string(b[bytes.Index(b, []byte("digest"))+10:])) {
			answer := append([]byte{0, 0, 0, 16}, login...)
			c.Write(append(answer, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0x8d)) // -115
			return
		}
		if _, err := s.Write(append(head[:], b...)); err != nil {
			return
		}
	}
}

// The kinds of refusals are what they are meant to be.
func TestWithdrawals(t *testing.T) {
	t.Parallel()
	for kind, words := range map[string]string{"rights": "not permitted", "login": "refuse"} {
		e := entrances[kind](t)
		b := open(t, e.url)
		r := request("a/b", driver.Exclusive)
		acquire(t, b, r)
		restore := e.withdraw()
		eventually(t, "the refusal is told", func() bool {
			err := b.Release(t.Context(), r.Hold)
			if err == nil || driver.Final(err) || errors.Is(err, driver.ErrLost) {
				t.Fatalf("%s: release: %v", kind, err)
			}
			return strings.Contains(err.Error(), words)
		})
		next := request("another", driver.Exclusive)
		_, err := b.Acquire(t.Context(), next)
		if !errors.Is(err, driver.ErrUnsent) || driver.Final(err) || !strings.Contains(err.Error(), words) {
			t.Errorf("%s: acquire: %v", kind, err)
		}
		restore()
		eventually(t, "the lock is released", func() bool { return b.Release(t.Context(), r.Hold) == nil })
		acquire(t, b, next)
	}
}

// A holder of a permit may not leave the queue for a moment: it does once it may.
func TestPlaceOfAPermitWithoutRight(t *testing.T) {
	t.Parallel()
	a, b := pair(t)
	r := request("", driver.Counted)
	r.Limit = 1
	acquire(t, a, r)
	release(t, a, r)
	queue := pathOf(r.Name) + "/" + locksNode
	op, addr := admin(t), testserver.SharedZooKeeper(t).Addr()
	eventually(t, "the queue is empty", func() bool { return len(nodes(t, op, queue)) == 0 })
	const all, del = 0x1f, 0x8
	setACL(t, addr, all&^del, "", "", queue)
	holder, next := r, r
	holder.Owner, next.Owner = driver.NewOwner(), driver.NewOwner()
	acquire(t, a, holder)
	time.Sleep(3 * deleteRetry)
	release(t, a, holder)
	setACL(t, addr, all, "", "", queue)
	eventually(t, "the next one is granted", func() bool {
		_, err := b.Acquire(t.Context(), next)
		return err == nil
	})
}
