package zklock

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
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

// The servers delete empty containers at any moment, also between a listing and a create.
func TestParentsComeAndGo(t *testing.T) {
	t.Parallel()
	a, b := pair(t)
	op := admin(t)
	name := "test " + driver.NewOwner() + "/nested/lock"
	path := pathOf(name)
	stop := make(chan struct{})
	var reaper sync.WaitGroup
	reaper.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			for p := path; p != ""; p = p[:len(p)-len(nodeName(p))-1] {
				op.Delete(context.Background(), p, -1) // not while it has children
			}
		}
	})
	var last uint64
	for i := range 60 {
		r := request(name, driver.Exclusive)
		r.Queue = i%2 == 0
		g := acquire(t, []*Backend{a, b}[i%3%2], r)
		if g.Fence <= last {
			t.Errorf("fence %d after %d", g.Fence, last)
		}
		last = g.Fence
		release(t, []*Backend{a, b}[i%3%2], r)
	}
	close(stop)
	reaper.Wait()
}

// Numbers near the end of their range are refused: after an overflow newcomers would come first.
func TestSequenceOverflow(t *testing.T) {
	t.Parallel()
	a, _ := pair(t)
	op := admin(t)
	for _, number := range []string{"2147000000", "-2147483648", "-000000001"} {
		for _, mode := range []driver.Mode{driver.Exclusive, driver.Read, driver.Write, driver.Counted} {
			r := request("", mode)
			dir := pathOf(r.Name)
			if mode == driver.Counted {
				dir += "/" + leasesNode
			}
			odd := makeNode(t, op, dir+"/_c_"+driver.NewOwner()+"-"+infixOf(mode)+number, "", zk.Ephemeral)
			refused(t, a, r, driver.ErrInvalid)
			if left := nodes(t, op, dir); len(left) != 1 {
				t.Errorf("%v: left behind: %+v", mode, left)
			}
			remove(t, op, odd)
			acquire(t, a, r)
			release(t, a, r)
		}
	}
}

func TestSharedSessionExcludes(t *testing.T) {
	t.Parallel()
	a := open(t, testserver.SharedZooKeeper(t).URL())
	name := "test " + driver.NewOwner()
	var inside atomic.Int32
	var last atomic.Uint64
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for range 4 {
				r := request(name, driver.Exclusive)
				g, err := await(t, a, r)
				if err != nil {
					t.Error(err)
					return
				}
				expect.Equal(t, inside.Add(1), 1, "holders at once")
				if before := last.Swap(g.Fence); before >= g.Fence {
					t.Errorf("fence %d after %d", g.Fence, before)
				}
				time.Sleep(2 * time.Millisecond)
				inside.Add(-1)
				expect.OK(t, a.Release(t.Context(), r.Hold))
			}
		})
	}
	wg.Wait()
}

// await waits as the core does, but only for notifications.
func await(t *testing.T, b *Backend, r driver.Request) (driver.Grant, error) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	g, err := b.Acquire(ctx, r)
	if err == nil || !errors.Is(err, driver.ErrHeld) {
		return g, err
	}
	w, err := b.Watch(ctx, r)
	if err != nil {
		return g, err
	}
	defer w.Close()
	for {
		if g, err = b.Acquire(ctx, r); err == nil || !errors.Is(err, driver.ErrHeld) {
			return g, err
		}
		select {
		case <-w.Ready:
		case <-ctx.Done():
			return g, ctx.Err()
		}
	}
}

// withoutAnswer returns a backend behind a proxy, and an attempt whose node was made and whose answer was lost.
func withoutAnswer(t *testing.T) (*faultproxy.Proxy, *Backend, driver.Request) {
	t.Helper()
	p := faultproxy.New(t, testserver.SharedZooKeeper(t).Addr())
	b := open(t, "zk://"+p.Addr())
	r := request("", driver.Exclusive)
	acquire(t, b, r)
	release(t, b, r)
	r.Owner = driver.NewOwner()
	p.LoseReply(r.Owner)
	if g, err := b.Acquire(t.Context(), r); err == nil {
		t.Fatalf("granted without an answer: %+v", g)
	}
	return p, b, r
}

// The create of an attempt without an answer may still be on its way, at a server that the session
// has left. A listing certainly shows its node only behind a write, which a majority has agreed to.
func TestResolveAsksTheMajority(t *testing.T) {
	t.Parallel()
	p, b, r := withoutAnswer(t)
	// A multi without parts, and the length of the listing's frame: no heartbeat has a request right behind it.
	const multi, noParts = "\x00\x00\x00\x0e", "\xff\xff\xff\xff\x01\xff\xff\xff\xff"
	listing := 4 + 4 + 4 + len(pathOf(r.Name)) + 1 // xid, opcode, the path with its length, no watch
	p.LoseRequest(multi + noParts + "\x00\x00\x00" + string([]byte{byte(listing)}))
	release(t, b, r)
	expect.Equal(t, p.Lost(), 2, "there was no write before the listing")
}

// Two creates of one Owner have both arrived: a release leaves none of their nodes.
func TestResolveOfTwoNodes(t *testing.T) {
	t.Parallel()
	_, b, r := withoutAnswer(t)
	k := b.claimOf(r.Hold)
	if late, err := k.s.conn.CreateAndList(t.Context(), k.prefix(), k.data); err != nil || len(late.Children) != 2 {
		t.Fatalf("%q, %v", late.Children, err)
	}
	release(t, b, r)
	if l, _, err := k.s.listCommitted(t.Context(), k.dir()); err != nil || len(l.nodes) > 0 {
		t.Errorf("left behind: %v, %v", l.nodes, err)
	}
}

// The error for another kind of lock does not tell the holder's Owner, by which anybody could release its hold.
func TestConflictTellsNoOwner(t *testing.T) {
	t.Parallel()
	a, b := pair(t)
	holder := request("", driver.Exclusive)
	acquire(t, a, holder)
	for _, m := range []driver.Mode{driver.Write, driver.Counted} {
		r := request(holder.Name, m)
		r.Limit = 1
		_, err := b.Acquire(t.Context(), r)
		if !errors.Is(err, driver.ErrInvalid) || strings.Contains(err.Error(), holder.Owner) {
			t.Errorf("%v: %v", m, err)
		}
	}
	permit := request("", driver.Counted)
	permit.Limit = 1
	acquire(t, a, permit)
	if _, err := b.Acquire(t.Context(), request(permit.Name, driver.Exclusive)); !errors.Is(err, driver.ErrInvalid) || strings.Contains(err.Error(), permit.Owner) {
		t.Error(err)
	}
}

// A user that may create nodes of a lock, and not list them, leaves none.
func TestAttemptOfAUserWhoMayNotList(t *testing.T) {
	t.Parallel()
	srv, op := testserver.SharedZooKeeper(t), admin(t)
	b := open(t, "zk://"+srv.Addr())
	r := request("unlisted-"+driver.NewOwner(), driver.Exclusive)
	path := pathOf(r.Name)
	setACL := func(rights string) {
		t.Helper()
		shell := testserver.ZooKeeperShell(t, srv)
		shell.Stdin = strings.NewReader("setAcl " + path + " world:anyone:" + rights + "\nquit\n")
		if out, err := shell.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	must.OK(t, expect.Err2(op.Create(t.Context(), path, nil, zk.Persistent)))
	setACL("cda")
	for range 2 {
		r.Owner, r.Queue = driver.NewOwner(), true
		expect.Be(t, expect.Err(b.Acquire(t.Context(), r)), driver.ErrInvalid)
	}
	setACL("cdrwa")
	if l := nodes(t, op, path); len(l) != 0 {
		t.Errorf("%d nodes are left", len(l))
	}
}

// isRevoked fails unless the only node of a lock has a revocation.
func isRevoked(t *testing.T, op *zk.Conn, r driver.Request) {
	t.Helper()
	path := pathOf(r.Name)
	data, _, err := op.Get(t.Context(), path+"/"+nodes(t, op, path)[0].name)
	if err != nil || string(data) != revokeData {
		t.Fatalf("the node's data is %q, %v", data, err)
	}
}

// A holder that acquires again does not overwrite a revocation.
func TestRegrantKeepsTheRevocation(t *testing.T) {
	t.Parallel()
	a, b := pair(t)
	op := admin(t)
	r := request("", driver.Exclusive)
	r.OnRevoke = func() {}
	acquire(t, a, r)
	must.OK(t, b.Revoke(t.Context(), r.Hold))
	for range 3 {
		acquire(t, a, r)
		isRevoked(t, op, r)
	}
}

// A revocation that arrives just before a downgrade is delivered after it.
func TestDowngradeKeepsTheRevocation(t *testing.T) {
	t.Parallel()
	a, b := pair(t)
	op := admin(t)
	r := request("", driver.Write)
	revoked := make(chan struct{}, 9)
	r.OnRevoke = func() { revoked <- struct{}{} }
	acquire(t, a, r)
	acquire(t, a, r) // another version of the node
	must.OK(t, b.Revoke(t.Context(), r.Hold))
	r.Mode = driver.Read
	acquire(t, a, r)
	isRevoked(t, op, r)
	<-revoked
	release(t, a, r)
	if n := len(revoked); n > 0 {
		t.Errorf("the holder was notified %d more times", n)
	}
}

// A message above the servers' limit is never sent, since they would close the shared connection.
// The error is final.
func TestTooLarge(t *testing.T) {
	for name, url := range map[string]string{
		"server": testserver.SharedZooKeeper(t).URL(), "ensemble": testserver.SharedZooKeeperCluster(t).URL(),
	} {
		t.Run(name, func(t *testing.T) {
			b := open(t, url)
			kept := request("", driver.Exclusive)
			acquire(t, b, kept)
			session := b.claimOf(kept.Hold).s
			for _, mode := range []driver.Mode{driver.Exclusive, driver.Write, driver.Counted} {
				for _, queue := range []bool{false, true} {
					fits, meta := request("", mode), request("", mode)
					fits.Queue, meta.Queue = queue, queue
					fits.Meta = map[string]string{"note": strings.Repeat("x", 1000<<10)}
					acquire(t, b, fits)
					release(t, b, fits)
					meta.Meta = map[string]string{"note": strings.Repeat("x", 1<<20)}
					refused(t, b, meta, driver.ErrInvalid)
					long := request(strings.Repeat("x", 1<<20), mode)
					long.Queue = queue
					refused(t, b, long, driver.ErrInvalid)
				}
			}
			acquire(t, b, kept)
			expect.Equal(t, b.claimOf(kept.Hold).s, session, "the session was lost")
		})
	}
}

// A TTL that no session can have is refused at once.
func TestTooLong(t *testing.T) {
	b := open(t, testserver.SharedZooKeeper(t).URL())
	most := b.Caps().MaxTTL
	for _, ttl := range []time.Duration{most, most + 1, math.MaxInt64} {
		r := request("", driver.Exclusive)
		r.TTL = ttl
		if ttl == most {
			acquire(t, b, r)
		} else {
			refused(t, b, r, driver.ErrInvalid)
		}
	}
}

// A hold whose downgrade had no answer is renewed, as a quorum does, and released, in whichever mode it is.
func TestRenewalAfterADowngradeWithoutAnAnswer(t *testing.T) {
	for what, lose := range map[string]func(*faultproxy.Proxy){
		"request": func(p *faultproxy.Proxy) { p.LoseRequest(infixOf(driver.Read)) },
		"answer":  func(p *faultproxy.Proxy) { p.LoseReply(infixOf(driver.Read)) },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			p := faultproxy.New(t, testserver.SharedZooKeeper(t).Addr())
			a, op := open(t, "zk://"+p.Addr()), admin(t)
			r := request("", driver.Write)
			r.OnLost = func() { t.Error("it was reported as lost") }
			acquire(t, a, r)
			lose(p)
			r.Mode = driver.Read
			if g, err := a.Acquire(t.Context(), r); err == nil {
				t.Fatalf("granted without an answer: %+v", g)
			}
			eventually(t, "it is renewed", func() bool {
				err := a.Renew(t.Context(), []driver.Hold{r.Hold})[0]
				if errors.Is(err, driver.ErrLost) {
					t.Fatal(err)
				}
				return err == nil
			})
			release(t, a, r)
			if left := nodes(t, op, pathOf(r.Name)); len(left) > 0 {
				t.Errorf("%d nodes are left", len(left))
			}
		})
	}
}

// A revocation that arrives between a downgrade without an answer and its repetition is kept, whatever the versions are.
func TestRevocationAfterADowngradeWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	p := faultproxy.New(t, testserver.SharedZooKeeper(t).Addr())
	a, b, op := open(t, "zk://"+p.Addr()), open(t, testserver.SharedZooKeeper(t).URL()), admin(t)
	r := request("", driver.Write)
	revoked := make(chan struct{}, 9)
	r.OnRevoke = func() { revoked <- struct{}{} }
	acquire(t, a, r)
	acquire(t, a, r) // the writer's node has the version that the reader's is going to have
	p.LoseReply(infixOf(driver.Read))
	r.Mode = driver.Read
	if g, err := a.Acquire(t.Context(), r); err == nil {
		t.Fatalf("granted without an answer: %+v", g)
	}
	must.OK(t, b.Revoke(t.Context(), r.Hold))
	eventually(t, "it is granted", func() bool {
		_, err := a.Acquire(t.Context(), r)
		return err == nil
	})
	isRevoked(t, op, r)
	<-revoked
	release(t, a, r)
}

// A downgrade that is retried until there is an answer leaves one reader node, whichever message is lost.
func TestDowngradeWithoutAnAnswer(t *testing.T) {
	for what, lose := range map[string]func(*faultproxy.Proxy){
		"reader's request": func(p *faultproxy.Proxy) { p.LoseRequest(infixOf(driver.Read)) },
		"reader's answer":  func(p *faultproxy.Proxy) { p.LoseReply(infixOf(driver.Read)) },
		"writer's request": func(p *faultproxy.Proxy) { p.LoseRequest(infixOf(driver.Write)) },
		"writer's answer":  func(p *faultproxy.Proxy) { p.LoseReply(infixOf(driver.Write)) },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			p := faultproxy.New(t, testserver.SharedZooKeeper(t).Addr())
			a, b := open(t, "zk://"+p.Addr()), open(t, testserver.SharedZooKeeper(t).URL())
			op := admin(t)
			r := request("", driver.Write)
			r.OnLost = func() { t.Error("a downgrade was reported as a loss") }
			before := acquire(t, a, r)
			lose(p)
			r.Mode = driver.Read
			g, err := a.Acquire(t.Context(), r)
			for ; err != nil; g, err = a.Acquire(t.Context(), r) {
				if driver.Final(err) || errors.Is(err, driver.ErrLost) {
					t.Fatal(err)
				}
			}
			if p.Lost() != 1 || g.Fence <= before.Fence {
				t.Errorf("%d lost; fence %d after %d", p.Lost(), g.Fence, before.Fence)
			}
			other := request(r.Name, driver.Read)
			acquire(t, b, other)
			release(t, b, other)
			path := pathOf(r.Name)
			if left := nodes(t, op, path); len(left) != 1 || left[0].mode != driver.Read || left[0].owner != r.Owner {
				t.Errorf("a reader has %+v", left)
			}
			release(t, a, r)
			if left := nodes(t, op, path); len(left) != 0 {
				t.Errorf("left: %+v", left)
			}
		})
	}
}

// An attempt fails with ErrUnsent while connections are refused.
func TestRefusedConnectionsSendNothing(t *testing.T) {
	t.Parallel()
	srv := testserver.SharedZooKeeper(t)
	for what, queue := range map[string]bool{"try": false, "wait": true} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			p := faultproxy.New(t, srv.Addr())
			b := open(t, strings.Replace(srv.URL(), srv.Addr(), p.Addr(), 1))
			acquire(t, b, request("", driver.Exclusive))
			p.Refuse()
			faultproxy.AwaitUnsent(t, b, func() driver.Request {
				r := request("", driver.Exclusive)
				r.Queue = queue
				return r
			})
			faultproxy.AwaitUnsentRelease(t, b, request("", driver.Exclusive).Hold)
		})
	}
}

// Servers keep a container for ever that never had a child. An attempt that is given up leaves none.
func TestAbandonedAttemptLeavesNoContainer(t *testing.T) {
	t.Parallel()
	b := open(t, testserver.SharedZooKeeper(t).URL())
	prefix := "abandoned " + driver.NewOwner() + "/"
	try := func(i int, bound time.Duration) time.Duration {
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), bound)
		defer cancel()
		r := request(prefix+fmt.Sprint(i), driver.Exclusive)
		if _, err := b.Acquire(ctx, r); err == nil {
			release(t, b, r)
		}
		return time.Since(began)
	}
	usual := try(0, patience)
	for i := range 200 {
		try(i+1, usual*time.Duration(i)/100)
	}
	c := admin(t)
	names, _, err := c.CommitAndList(t.Context(), "/"+prefix[:len(prefix)-1])
	must.OK(t, err)
	for _, name := range names {
		if _, stat, err := c.Children(t.Context(), "/"+prefix+name); err == nil && stat.Cversion == 0 {
			t.Errorf("container %s never had a child", name)
		}
	}
}
