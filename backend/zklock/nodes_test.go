package zklock

import (
	"errors"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/zk"
)

// curator makes a node as Curator does.
func curator(t *testing.T, c *zk.Conn, dir, base, data string) (owner, path string) {
	t.Helper()
	owner = driver.NewOwner()
	return owner, makeNode(t, c, dir+"/_c_"+owner+"-"+base, data, zk.EphemeralSequential)
}

func TestRevocation(t *testing.T) {
	for _, mode := range []driver.Mode{driver.Exclusive, driver.Write, driver.Read, driver.Counted} {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			a, b := pair(t)
			for _, sides := range [][2]*Backend{{a, b}, {b, a}} {
				holder, revoker := sides[0], sides[1]
				r := request("", mode)
				var calls atomic.Int32
				revoked := make(chan struct{})
				r.OnRevoke = func() {
					if calls.Add(1) == 1 {
						close(revoked)
					}
				}
				acquire(t, holder, r)
				info, err := revoker.Inspect(t.Context(), r.Name)
				if err != nil || len(info.Holders) != 1 {
					t.Fatalf("%+v, %v", info, err)
				}
				seen := driver.Hold{Name: r.Name, Owner: info.Holders[0].Owner, Mode: info.Holders[0].Mode}
				must.OK(t, revoker.Revoke(t.Context(), seen))
				signalled(t, "the holder is notified of the revocation", revoked)
				// The revocation survives the holder's own write.
				before := acquire(t, holder, r)
				if after := acquire(t, holder, r); after.Fence <= before.Fence {
					t.Errorf("fence %d after %d", after.Fence, before.Fence)
				}
				expect.OK(t, revoker.Revoke(t.Context(), seen))
				release(t, holder, r)
				expect.Be(t, revoker.Revoke(t.Context(), seen), driver.ErrLost, "after the release")
				expect.Equal(t, calls.Load(), 1, "revoked")
			}
		})
	}
}

func TestCuratorsHolders(t *testing.T) {
	t.Parallel()
	a, _ := pair(t)
	java := admin(t)
	for _, c := range []struct {
		mode      driver.Mode
		dir, base string
		data      string
		revoke    error
	}{
		{driver.Exclusive, "", "lock-", "127.0.0.1", driver.ErrUnsupported},
		{driver.Exclusive, "", "lock-", "", nil}, // it was made revocable
		{driver.Write, "", "__WRIT__", "127.0.0.1", driver.ErrUnsupported},
		{driver.Read, "", "__READ__", "127.0.0.1", driver.ErrUnsupported},
		{driver.Counted, "/leases", "lease-", "127.0.0.1", driver.ErrUnsupported},
	} {
		r := request("", c.mode)
		r.Limit, r.Queue = 1, false
		if c.mode == driver.Read {
			r.Mode = driver.Write
		}
		owner, path := curator(t, java, pathOf(r.Name)+c.dir, c.base, c.data)
		held := (*driver.HeldError)(nil)
		if err := refused(t, a, r, driver.ErrHeld); !errors.As(err, &held) || held.Holders[0].Owner != owner {
			t.Errorf("%v: %+v", c.mode, held)
		}
		info, err := a.Inspect(t.Context(), r.Name)
		if err != nil || len(info.Holders) != 1 || info.Mode != c.mode || info.Holders[0].Owner != owner || info.Holders[0].Meta["host"] != c.data {
			t.Fatalf("%v: %+v, %v", c.mode, info, err)
		}
		h := driver.Hold{Name: r.Name, Owner: owner, Mode: c.mode}
		expect.Be(t, a.Revoke(t.Context(), h), c.revoke, c.mode, "revoke")
		if data, _, err := java.Get(t.Context(), path); c.revoke == nil && (string(data) != revokeData || err != nil) {
			t.Errorf("%v: revoked by %q, %v", c.mode, data, err)
		}
		expect.OK(t, a.Release(t.Context(), h), c.mode, "release by force")
		acquire(t, a, r)
		release(t, a, r)
	}
}

// zk.Lock's nodes have no UUID: their names serve as Owners.
func TestPeersNodeIsReleasedByItsName(t *testing.T) {
	t.Parallel()
	a, _ := pair(t)
	peer := admin(t)
	r := request("", driver.Exclusive)
	path := makeNode(t, peer, pathOf(r.Name)+"/_c_0123abcd456789abcdef0123456789ab-lock-", "", zk.EphemeralSequential)
	info, err := a.Inspect(t.Context(), r.Name)
	if err != nil || len(info.Holders) != 1 || info.Holders[0].Owner != nodeName(path) {
		t.Fatalf("%+v, %v", info, err)
	}
	h := driver.Hold{Name: r.Name, Owner: nodeName(path), Mode: driver.Exclusive}
	expect.Be(t, a.Revoke(t.Context(), h), driver.ErrUnsupported, "revoke")
	must.OK(t, a.Release(t.Context(), h))
	acquire(t, a, r)
}

// Children that are no lock nodes don't count. Nodes of other kinds of locks do.
func TestOtherKindsBelowThePath(t *testing.T) {
	t.Parallel()
	a, b := pair(t)
	op := admin(t)
	r := request("", driver.Exclusive)
	for _, child := range []string{"config", "0", "-1", "lock-x", "0000000000"} {
		remove := makeNode(t, op, pathOf(r.Name)+"/"+child, "", zk.Ephemeral)
		defer op.Delete(t.Context(), remove, -1)
	}
	nested := request(r.Name+"/nested", driver.Write)
	acquire(t, b, nested)
	acquire(t, a, r)
	release(t, a, r)
	for _, base := range []string{"latch-", "__WRIT__"} {
		_, path := curator(t, op, pathOf(r.Name), base, "")
		refused(t, a, r, driver.ErrInvalid)
		if left := nodes(t, op, pathOf(r.Name)); len(left) != 1 {
			t.Errorf("left behind: %+v", left)
		}
		remove(t, op, path)
	}
	acquire(t, a, r)
}

// The nodes of another recipe, such as kazoo's, are foreign: the lock is not free, and a force unlock leaves them.
func TestInspectOfOtherRecipes(t *testing.T) {
	t.Parallel()
	a, _ := pair(t)
	op := admin(t)
	c := must.Get(distlock.New(a, nil))(t)
	r := request("", driver.Exclusive)
	base := pathOf(r.Name) + "/0123456789abcdef0123456789abcdef__lock__"
	first := makeNode(t, op, base, "kazoo-host", zk.EphemeralSequential)
	makeNode(t, op, base, "kazoo-host", zk.EphemeralSequential)
	info, err := c.Inspect(t.Context(), r.Name)
	if err != nil || len(info.Holders) != 1 || len(info.Waiters) != 1 || info.Mode != driver.Exclusive {
		t.Fatalf("%+v, %v; want a mutex with a holder and a waiter", info, err)
	}
	if h := info.Holders[0]; h.Owner != nodeName(first) || !h.Foreign || h.Mode != driver.Exclusive || !info.Waiters[0].Foreign {
		t.Errorf("foreign nodes are shown as %+v and %+v", h, info.Waiters[0])
	}
	expect.Be(t, c.ForceUnlock(t.Context(), info), distlock.ErrInvalid, "force unlock")
	refused(t, a, r, driver.ErrInvalid)
	info.Holders[0].Foreign = false
	expect.OK(t, c.ForceUnlock(t.Context(), info), "force unlock of foreign nodes")
	if left := nodes(t, op, pathOf(r.Name)); len(left) != 1 || left[0].name == nodeName(first) {
		t.Errorf("left: %+v", left)
	}
}

// When a writer of Curator becomes a reader, its reader node has the writer's number since 5.5, and
// a later number before.
func TestBothFormsOfDowngrade(t *testing.T) {
	t.Parallel()
	a, _ := pair(t)
	java := admin(t)
	r := request("", driver.Read)
	owner, writer := curator(t, java, pathOf(r.Name), "__WRIT__", "")
	refused(t, a, r, driver.ErrHeld)
	n, _ := parseNode(nodeName(writer))
	reader := makeNode(t, java, pathOf(r.Name)+"/_c_"+owner+"-__READ__"+n.seq, "", zk.Ephemeral)
	remove(t, java, writer)
	acquire(t, a, r)
	w := request(r.Name, driver.Write)
	refused(t, a, w, driver.ErrHeld)
	release(t, a, r)
	refused(t, a, w, driver.ErrHeld)
	remove(t, java, reader)
	g := acquire(t, a, w)
	release(t, a, w)

	owner, writer = curator(t, java, pathOf(r.Name), "__WRIT__", "")
	late := makeNode(t, java, pathOf(r.Name)+"/_c_"+owner+"-__READ__", "", zk.EphemeralSequential)
	remove(t, java, writer)
	refused(t, a, w, driver.ErrHeld)
	r.Owner = driver.NewOwner()
	refused(t, a, r, driver.ErrHeld) // behind the writer that waits
	remove(t, java, late)
	if after := acquire(t, a, w); after.Fence <= g.Fence {
		t.Errorf("fence %d after %d", after.Fence, g.Fence)
	}
}

// A writer that became a reader keeps its number, as Curator does since 5.5.
func TestDowngradeKeepsTheNumber(t *testing.T) {
	t.Parallel()
	a, b := pair(t)
	op := admin(t)
	w := request("", driver.Write)
	g := acquire(t, a, w)
	waiter := request(w.Name, driver.Write)
	refused(t, b, waiter, driver.ErrHeld)
	path := pathOf(w.Name)
	before := nodes(t, op, path)[0]
	w.Mode = driver.Read
	if after := acquire(t, a, w); after.Fence <= g.Fence {
		t.Errorf("fence %d after %d", after.Fence, g.Fence)
	}
	got := nodes(t, op, path)
	if len(got) != 2 || got[0].seq != before.seq || got[0].mode != driver.Read || got[0].owner != w.Owner {
		t.Errorf("%+v, before %+v", got, before)
	}
	refused(t, b, waiter, driver.ErrHeld)
	release(t, a, w)
	acquire(t, b, waiter)
}

// Semaphore: Curator's candidate has a lease while it waits, and counts all that are there.
func TestSemaphoreWithCurator(t *testing.T) {
	t.Parallel()
	a, b := pair(t)
	java := admin(t)
	one, two := request("", driver.Counted), request("", driver.Counted)
	two.Name = one.Name
	leases, locks := pathOf(one.Name)+"/"+leasesNode, pathOf(one.Name)+"/"+locksNode
	acquire(t, a, one)
	acquire(t, b, two)
	eventually(t, "who holds leaves the queue", func() bool { return len(nodes(t, java, locks)) == 0 })
	_, lock := curator(t, java, locks, "lock-", "")
	owner, lease := curator(t, java, leases, "lease-", "")
	try := request(one.Name, driver.Counted)
	try.Queue = false
	release(t, a, one)
	refused(t, b, try, driver.ErrHeld) // Java is next
	waiter := request(one.Name, driver.Counted)
	refused(t, a, waiter, driver.ErrHeld)
	expect.Equal(t, len(nodes(t, java, leases)), 2, "leases: Java would wait")
	w := must.Get(a.Watch(t.Context(), waiter))(t)
	defer w.Close()
	remove(t, java, lock)
	signalled(t, "the queue moves", w.Ready)
	refused(t, a, waiter, driver.ErrHeld)
	info, err := b.Inspect(t.Context(), one.Name)
	holds := func(owner string) bool {
		return slices.ContainsFunc(info.Holders, func(h driver.Holder) bool { return h.Owner == owner })
	}
	if err != nil || len(info.Holders) != 2 || !holds(two.Owner) || !holds(owner) || info.Limit != 2 || len(info.Waiters) != 1 || info.Waiters[0].Owner != waiter.Owner {
		t.Errorf("%+v, %v", info, err)
	}
	remove(t, java, lease)
	signalled(t, "a permit is free", w.Ready)
	acquire(t, a, waiter)
	refused(t, b, try, driver.ErrHeld)
}

// Of two kinds of locks on one name at most one is granted. The other leaves no node.
func TestKindsAtOnce(t *testing.T) {
	t.Parallel()
	a, b := pair(t)
	for range 30 {
		one, two := request("", driver.Exclusive), request("", driver.Counted)
		two.Name, two.Queue = one.Name, false
		errs := make(chan error, 1)
		go func() {
			_, err := a.Acquire(t.Context(), one)
			errs <- err
		}()
		_, second := b.Acquire(t.Context(), two)
		first := <-errs
		if first == nil && second == nil {
			t.Fatal("a mutex and a semaphore are one name, and both were granted")
		}
		for _, err := range []error{first, second} {
			if err != nil && !errors.Is(err, driver.ErrInvalid) {
				t.Errorf("%v, want ErrInvalid", err)
			}
		}
		a.Release(t.Context(), one.Hold)
		b.Release(t.Context(), two.Hold)
	}
}
