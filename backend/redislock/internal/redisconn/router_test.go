package redisconn

import (
	"context"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock/distlock/internal/testkit/faultproxy"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// proxies stand between one client and each of its servers.
type proxies struct {
	t      testing.TB
	mu     sync.Mutex
	byAddr map[string]*faultproxy.Proxy
}

func (n *proxies) dial(ctx context.Context, _, addr string) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "tcp", n.before(addr).Addr())
}

func (n *proxies) before(addr string) *faultproxy.Proxy {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.byAddr[addr] == nil {
		n.byAddr[addr] = faultproxy.New(n.t, addr)
	}
	return n.byAddr[addr]
}

// A silent server does not delay the refresh of the slot table.
func TestRefreshPastASilentServer(t *testing.T) {
	r, _ := openBesideASilentServer(t, testserver.SharedRedisCluster(t))
	for range 5 {
		if err := r.wait(t.Context(), r.refresh()); err != nil {
			t.Errorf("refresh: %v", err)
		}
	}
}

// openBesideASilentServer returns a client that knows all servers, of which one is silent by now. It waits for an answer for an hour.
func openBesideASilentServer(t *testing.T, g *testserver.RedisClusterGroup) (r *Client, silent *testserver.RedisServer) {
	n := &proxies{t: t, byAddr: map[string]*faultproxy.Proxy{}}
	r = NewCluster("", g.Addrs(), func(addr string) *Server {
		return NewServer(Options{Addr: addr, Dialer: n.dial, Timeout: time.Hour})
	})
	t.Cleanup(r.Close)
	for _, key := range []string{"a", "b", "c"} { // of three masters
		must.Get(r.Do(t.Context(), key, []string{"EXISTS", key}))(t)
	}
	silent = g.Masters()[0]
	n.before(silent.Addr()).Silence()
	return r, silent
}

// A slot moves between two servers while a third is silent. Each command reaches the new server,
// however long the client waits for answers. go-redis's own cluster client fails this test.
func TestSlotMovesBesideASilentServer(t *testing.T) {
	g := testserver.SharedRedisCluster(t)
	r, silent := openBesideASilentServer(t, g)
	others := slices.DeleteFunc(g.Masters(), func(s *testserver.RedisServer) bool { return s == silent })
	slot := g.Slot("b")
	if g.Owner(slot) == silent {
		slot = g.Slot("c")
	}
	if g.Owner(slot) == others[0] {
		slices.Reverse(others)
	}
	for i, to := range others { // there and back
		g.MoveSlot(slot, to)
		key := "{" + SlotTags()[slot] + "}"
		if _, err := r.Do(t.Context(), key, []string{"EXISTS", key}); err != nil {
			t.Errorf("move %d: %v", i, err)
		}
		r.mu.Lock()
		owner := r.table.owner(key)
		r.mu.Unlock()
		if owner != to.Addr() {
			t.Errorf("move %d: the slot is at %s, want %s", i, owner, to.Addr())
		}
	}
}

// movingMaster has one server, which the test replaces.
type movingMaster struct {
	mu   sync.Mutex
	addr string
	mute bool // load does not answer
}

func (m *movingMaster) client() *Client {
	return newClient(topology{
		maxAge: sentinelInterval,
		open:   func(addr string) *Server { return NewServer(Options{Addr: addr}) },
		load: func(ctx context.Context, _ []string, _ func(string) (*Server, error)) (slotTable, error) {
			m.mu.Lock()
			defer m.mu.Unlock()
			if m.mute {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return slotTable{m.addr}, nil
		},
	})
}

func (m *movingMaster) set(addr string, mute bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.addr, m.mute = addr, mute
}

// The first request after a pause goes to the new master. If the topology does not answer it soon
// goes to the old one.
func TestMasterReplacedInAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &movingMaster{addr: "one"}
		r := m.client()
		defer r.Close()
		at := func(want string) {
			t.Helper()
			s, err := r.At(t.Context(), "")
			if err != nil || s.o.Addr != want {
				t.Errorf("the server is %v, %v, want %s", s, err, want)
			}
		}
		at("one")
		m.set("two", false)
		time.Sleep(sentinelInterval / 2)
		at("one")
		time.Sleep(time.Minute)
		at("two")
		time.Sleep(time.Minute)
		m.set("three", true)
		start := time.Now()
		at("two")
		if took := time.Since(start); took > sentinelInterval {
			t.Errorf("waited for %v", took)
		}
	})
}

// While sentinels are silent, requests with little time go to the last known master.
func TestMuteSentinelsTakeNoTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &movingMaster{addr: "one"}
		r := m.client()
		defer r.Close()
		r.At(t.Context(), "")
		m.set("one", true)
		for range 200 {
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			if _, err := r.At(ctx, ""); err != nil || ctx.Err() != nil {
				t.Errorf("after looking for the server: %v, %v", err, ctx.Err())
			}
			cancel()
			time.Sleep(100 * time.Millisecond)
		}
	})
}

func TestSlots(t *testing.T) {
	// As CLUSTER KEYSLOT answers.
	for key, want := range map[string]int{
		"": 0, "123456789": 12739, "foo": 12182, "{foo}bar": 12182, "a{foo}{bar}": 12182,
		"foo{}{bar}": 8363, "foo{{bar}}zap": 4015, "{user1000}.following": 3443,
	} {
		if got := SlotOf(key); got != want {
			t.Errorf("slot of %q: %d, want %d", key, got, want)
		}
	}
	for slot, tag := range SlotTags() {
		if got := SlotOf("distlock:fence:{" + tag + "}"); got != slot || len(tag) > 6 {
			t.Fatalf("tag %q of slot %d lies in %d", tag, slot, got)
		}
	}
}
