package zklock

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/faultproxy"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
	"github.com/distlock/distlock/internal/zk"
)

// A waiter whose node was deleted must not get the lock because no node is before its old number:
// zk.Lock of go-zookeeper/zk grants it then, and to another waiter too.
func TestWaiterWithoutItsNodeDoesNotHold(t *testing.T) {
	for _, mode := range []driver.Mode{driver.Exclusive, driver.Write, driver.Read} {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			a, b := pair(t)
			op := admin(t)
			holder, waiter, third := request("", mode), request("", mode), request("", mode)
			if mode == driver.Read {
				holder.Mode, third.Mode = driver.Write, driver.Write
			}
			waiter.Name, third.Name = holder.Name, holder.Name
			acquire(t, a, holder)
			refused(t, b, waiter, driver.ErrHeld)
			w := must.Get(b.Watch(t.Context(), waiter))(t)
			defer w.Close()
			refused(t, a, third, driver.ErrHeld)
			path := pathOf(holder.Name)
			remove(t, op, path+"/"+nodes(t, op, path).ofOwner(waiter.Owner)[0].name)
			release(t, a, holder)
			signalled(t, "a waiter is notified of the end of the node before it", w.Ready)
			refused(t, b, waiter, driver.ErrHeld) // it is behind the third now
			acquire(t, a, third)
			release(t, a, third)
			acquire(t, b, waiter)
			if r := nodes(t, op, path); len(r) != 1 || r[0].owner != waiter.Owner {
				t.Errorf("the holder has no node; there are %+v", r)
			}
		})
	}
}

func TestNodeDeletedWhileHeld(t *testing.T) {
	for _, mode := range []driver.Mode{driver.Exclusive, driver.Write, driver.Read, driver.Counted} {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			a, b := pair(t)
			op := admin(t)
			r := request("", mode)
			r.Limit = 1
			var notified atomic.Int32
			lost := make(chan struct{})
			r.OnLost = func() {
				if notified.Add(1) == 1 {
					close(lost)
				}
			}
			first := acquire(t, a, r)
			acquire(t, a, r)
			if mode == driver.Write {
				r.Mode = driver.Read
				acquire(t, a, r)
			}
			dir := pathOf(r.Name)
			if mode == driver.Counted {
				dir += "/" + leasesNode
			}
			remove(t, op, dir+"/"+nodes(t, op, dir)[0].name)
			signalled(t, "the holder is notified that its node is gone", lost)
			if errs := a.Renew(t.Context(), []driver.Hold{r.Hold}); !errors.Is(errs[0], driver.ErrLost) {
				t.Errorf("renew: %v", errs[0])
			}
			expect.Be(t, a.Release(t.Context(), r.Hold), driver.ErrLost, "release")
			next := r
			next.Owner, next.OnLost = driver.NewOwner(), nil
			if g := acquire(t, b, next); g.Fence <= first.Fence {
				t.Errorf("fence %d after %d", g.Fence, first.Fence)
			}
			expect.Equal(t, notified.Load(), 1, "notified")
		})
	}
}

// Another program forbids to read the node of a hold. The backend tries to watch it again at a slow pace, and
// still finds out that it is gone.
func TestNodeThatMayNotBeRead(t *testing.T) {
	t.Parallel()
	srv, op := testserver.SharedZooKeeper(t), admin(t)
	c := &requestCounter{n: map[uint32]int{}}
	b := openCounted(t, c)
	r := request("unreadable-"+driver.NewOwner(), driver.Exclusive)
	lost := make(chan struct{})
	r.OnLost, r.OnRevoke = func() { close(lost) }, func() {}
	acquire(t, b, r)
	node := pathOf(r.Name) + "/" + nodes(t, op, pathOf(r.Name))[0].name
	shell := testserver.ZooKeeperShell(t, srv)
	shell.Stdin = strings.NewReader("setAcl " + node + " world:anyone:cdw\nquit\n")
	if out, err := shell.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	must.Be(t, expect.Err2(op.Get(t.Context(), node)), zk.ErrNoAuth, "the node can be read")
	reads := func() int { return c.of(opGetData) }
	first := reads()
	b.claimOf(r.Hold).watchEnded(node) // servers with a fix for CVE-2024-23944 report no change of such a node
	eventually(t, "the node is read again", func() bool { return reads() >= first+3 })
	first, start := reads(), time.Now()
	time.Sleep(5 * watchDelay)
	n, most := reads()-first, int(time.Since(start)/watchDelay)+1
	if n > most {
		t.Errorf("%d reads, want at most %d", n, most)
	}
	remove(t, op, node)
	signalled(t, "the holder is notified that its node is gone", lost)
}

// The end of a session ends all its holds, and no others.
func TestSessionEnds(t *testing.T) {
	t.Parallel()
	a, b := pair(t)
	r, other := request("", driver.Exclusive), request("", driver.Exclusive)
	other.TTL = time.Minute
	lost := make(chan struct{})
	r.OnLost = func() { close(lost) }
	other.OnLost = func() { t.Error("another session's hold was lost") }
	waiter := request("", driver.Exclusive)
	acquire(t, b, waiter)
	behind := waiter
	behind.Owner = driver.NewOwner()
	acquire(t, a, r)
	acquire(t, a, other)
	refused(t, a, behind, driver.ErrHeld)
	w := must.Get(a.Watch(t.Context(), behind))(t)
	defer w.Close()
	killSession(t, a, r)
	signalled(t, "the holder is notified", lost)
	signalled(t, "the waiter is notified", w.Ready)
	errs := a.Renew(t.Context(), []driver.Hold{r.Hold, other.Hold})
	if !errors.Is(errs[0], driver.ErrLost) || errs[1] != nil {
		t.Errorf("renew: %v", errs)
	}
	expect.Be(t, a.Release(t.Context(), r.Hold), driver.ErrLost, "release")
	next := r
	next.Owner, next.OnLost = driver.NewOwner(), nil
	acquire(t, a, next)
	refused(t, a, behind, driver.ErrHeld)
	release(t, b, waiter)
	acquire(t, a, behind)
	release(t, a, other)
}

// killSession ends the session of a hold without the backend's doing.
func killSession(t *testing.T, b *Backend, r driver.Request) {
	t.Helper()
	b.mu.Lock()
	s := b.claims[r.Owner].s
	b.mu.Unlock()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	must.OK(t, s.conn.Close(ctx))
}

// A renewal of many holds with long names is split into messages of legal size.
func TestRenewManyLongNames(t *testing.T) {
	t.Parallel()
	b := open(t, testserver.SharedZooKeeper(t).URL())
	var holds []driver.Hold
	for range 300 {
		r := request(strings.Repeat("long ", 1000)+driver.NewOwner(), driver.Exclusive)
		acquire(t, b, r)
		holds = append(holds, r.Hold)
	}
	for i, err := range b.Renew(t.Context(), holds) {
		must.OK(t, err, "hold", i)
	}
}

// A forced release succeeds although the session that deletes the nodes ends meanwhile.
func TestForcedReleaseWhoseSessionEnds(t *testing.T) {
	t.Parallel()
	for _, mode := range []driver.Mode{driver.Exclusive, driver.Counted} {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			holder := open(t, testserver.SharedZooKeeper(t).URL())
			p := faultproxy.New(t, testserver.SharedZooKeeper(t).Addr())
			b := open(t, "zk://"+p.Addr())
			r, own := request("", mode), request("", mode)
			r.Limit = 1
			acquire(t, holder, r)
			acquire(t, b, own) // opens the session that the forced release uses

			p.Delay(time.Second)
			released := make(chan error, 1)
			go func() { released <- b.Release(t.Context(), r.Hold) }()
			time.Sleep(200 * time.Millisecond) // it waits for the listing
			killSession(t, b, own)
			p.Delay(0)
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			select {
			case err := <-released:
				if err != nil {
					t.Errorf("the lock is held, and a forced release returns %v", err)
				}
			case <-ctx.Done():
				t.Fatal("no answer")
			}
			acquire(t, holder, func() driver.Request { n := r; n.Owner = driver.NewOwner(); return n }())
		})
	}
}

// A node may change before its watch is recorded. Then the watch must be set again.
func TestNodeEndsWhileItIsArmed(t *testing.T) {
	b := open(t, testserver.SharedZooKeeper(t).URL())
	s := must.Get(b.session(t.Context(), time.Minute))(t)
	w := &queueWatch{b: b, ready: make(chan struct{}, 1), r: driver.Request{Hold: driver.Hold{Name: t.Name(), TTL: time.Minute}}}
	defer w.close()
	_, _, zw, err := s.conn.GetW(t.Context(), "/", w.changed)
	must.OK(t, err)
	w.changed(zk.EventDataChanged)
	w.keep(zw, "/")
	if !w.idle() {
		t.Error("the watch counts as armed")
	}
}
