package zklock

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/faultproxy"
	"github.com/distlock/distlock/internal/testkit/testserver"
	"github.com/distlock/distlock/internal/zk"
)

// A waiter whose node was deleted must not hold because nobody is before the number that
// it once had: zk.Lock of go-zookeeper/zk lets it in then, and another one too.
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
			w, err := b.Watch(t.Context(), waiter)
			if err != nil {
				t.Fatal(err)
			}
			defer w.Close()
			refused(t, a, third, driver.ErrHeld)
			path := pathOf(holder.Name)
			remove(t, op, path+"/"+nodes(t, op, path).of(waiter.Owner)[0].name)
			signalled(t, "a waiter is told of the end of its own node", w.Ready)
			release(t, a, holder)
			refused(t, b, waiter, driver.ErrHeld) // it is behind the third now
			acquire(t, a, third)
			release(t, a, third)
			acquire(t, b, waiter)
			if r := nodes(t, op, path); len(r) != 1 || r[0].owner != waiter.Owner {
				t.Errorf("who holds has a node; there are %+v", r)
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
			var told atomic.Int32
			lost := make(chan struct{})
			r.OnLost = func() {
				if told.Add(1) == 1 {
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
			signalled(t, "the holder is told that its node is gone", lost)
			if errs := a.Renew(t.Context(), []driver.Hold{r.Hold}); !errors.Is(errs[0], driver.ErrLost) {
				t.Errorf("renew: %v", errs[0])
			}
			if err := a.Release(t.Context(), r.Hold); !errors.Is(err, driver.ErrLost) {
				t.Errorf("release: %v", err)
			}
			next := r
			next.Owner, next.OnLost = driver.NewOwner(), nil
			if g := acquire(t, b, next); g.Fence <= first.Fence {
				t.Errorf("fence %d after %d", g.Fence, first.Fence)
			}
			if n := told.Load(); n != 1 {
				t.Errorf("told %d times", n)
			}
		})
	}
}

// The end of a session is the end of all its holds, and of no others.
func TestSessionEnds(t *testing.T) {
	t.Parallel()
	a, b := pair(t)
	r, other := request("", driver.Exclusive), request("", driver.Exclusive)
	other.TTL = 20 * time.Second
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
	w, err := a.Watch(t.Context(), behind)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	killSession(t, a, r)
	signalled(t, "the holder is told", lost)
	signalled(t, "the waiter is told", w.Ready)
	errs := a.Renew(t.Context(), []driver.Hold{r.Hold, other.Hold})
	if !errors.Is(errs[0], driver.ErrLost) || errs[1] != nil {
		t.Errorf("renew: %v", errs)
	}
	if err := a.Release(t.Context(), r.Hold); !errors.Is(err, driver.ErrLost) {
		t.Errorf("release: %v", err)
	}
	next := r
	next.Owner, next.OnLost = driver.NewOwner(), nil
	acquire(t, a, next)
	refused(t, a, behind, driver.ErrHeld)
	release(t, b, waiter)
	acquire(t, a, behind)
	release(t, a, other)
}

// killSession ends the session of a hold behind the backend's back.
func killSession(t *testing.T, b *Backend, r driver.Request) {
	t.Helper()
	b.mu.Lock()
	s := b.places[r.Owner].s
	b.mu.Unlock()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := s.conn.Close(ctx); err != nil {
		t.Fatal(err)
	}
}

// What an attempt without an answer has left may be on its way still, to a server that the
// session has left: only what is asked behind it, at the leader, certainly sees it.
func TestWhatIsLeftIsLookedForAtTheLeader(t *testing.T) {
	t.Parallel()
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
	const sync = "\x00\x00\x00\x09" // the op, before a path with its length
	path := pathOf(r.Name)
	p.LoseRequest(sync + "\x00\x00\x00" + string(byte(len(path))) + path)
	release(t, b, r)
	if p.Lost() != 2 {
		t.Error("the server was not asked for all that was done before")
	}
}

// Containers are removed when they are empty: between a look and a create too.
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
			for p := path; p != ""; p = p[:len(p)-len(base(p))-1] {
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

// Numbers near the end of their range are refused: behind it newcomers come first.
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
			odd := makeNode(t, op, dir+"/_c_"+driver.NewOwner()+"-"+kindOf(mode).base()+number, "", zk.Ephemeral)
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
				if n := inside.Add(1); n != 1 {
					t.Errorf("%d holders at once", n)
				}
				if before := last.Swap(g.Fence); before >= g.Fence {
					t.Errorf("fence %d after %d", g.Fence, before)
				}
				time.Sleep(2 * time.Millisecond)
				inside.Add(-1)
				if err := a.Release(t.Context(), r.Hold); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

// await is the core's waiting loop, by signals alone.
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

// However long the names are, a renewal of many holds is no longer than a message may be.
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
		if err != nil {
			t.Fatalf("hold %d: %.200s", i, err)
		}
	}
}

// A holder that asks again, and again, does not wipe that it was asked for the lock.
func TestAskingAgainKeepsTheWish(t *testing.T) {
	t.Parallel()
	a, b := pair(t)
	op := admin(t)
	r := request("", driver.Exclusive)
	r.OnRevoke = func() {}
	acquire(t, a, r)
	if err := b.Revoke(t.Context(), r.Hold); err != nil {
		t.Fatal(err)
	}
	path := pathOf(r.Name)
	for range 3 {
		acquire(t, a, r)
		data, _, err := op.Get(t.Context(), path+"/"+nodes(t, op, path)[0].name)
		if err != nil || string(data) != revokeData {
			t.Fatalf("the node's data are %q, %v", data, err)
		}
	}
}
