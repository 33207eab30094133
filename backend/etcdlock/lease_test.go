package etcdlock

import (
	"errors"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// A hold that is renewed for longer than its lease lives moves to another one, and keeps
// its place.
func TestRenewForLonger(t *testing.T) {
	b, admin := shared(t), shared(t)
	for _, fixed := range []bool{false, true} {
		r := request("", driver.Exclusive)
		r.TTL, r.Fixed = 20*time.Second, fixed
		acquire(t, b, r)
		before := storedKeys(t, admin, r.Name)[0]
		longer := r.Hold
		longer.TTL = time.Hour
		if errs := b.Renew(t.Context(), []driver.Hold{longer}); errs[0] != nil {
			t.Fatal(errs[0])
		}
		after := storedKeys(t, admin, r.Name)[0]
		if after.created != before.created || after.lease == before.lease {
			t.Errorf("fixed %v: moved from %+v to %+v", fixed, before, after)
		}
		// The old lease is of no use to the hold any more.
		admin.client.Revoke(t.Context(), before.lease)
		if errs := b.Renew(t.Context(), []driver.Hold{longer}); errs[0] != nil {
			t.Errorf("fixed %v: without its old lease: %v", fixed, errs[0])
		}
		left, err := admin.client.TimeToLive(t.Context(), after.lease)
		if err != nil || left.TTL < 3000 {
			t.Errorf("fixed %v: lives for %d s, %v", fixed, left.TTL, err)
		}
		info, err := admin.Inspect(t.Context(), r.Name)
		if err != nil || len(info.Holders) != 1 || info.Holders[0].Fence != 0 {
			t.Errorf("fixed %v: the fence is not that of the grant: %+v, %v", fixed, info, err)
		}
		release(t, b, r)
	}
}

// A hold that is to end by itself gets a lease of its own, which nobody prolongs.
func TestRenewalThatShortens(t *testing.T) {
	t.Parallel()
	b, admin := shared(t), shared(t)
	r := request("", driver.Exclusive)
	acquire(t, b, r)
	before := storedKeys(t, admin, r.Name)[0]
	last := r.Hold
	last.TTL, last.Shorten = 10*time.Second, true
	if err := b.Renew(t.Context(), []driver.Hold{last})[0]; err != nil {
		t.Fatal(err)
	}
	after := storedKeys(t, admin, r.Name)[0]
	granted, err := admin.client.TimeToLive(t.Context(), after.lease)
	if err != nil || after.lease == before.lease || granted.GrantedTTL > 10 {
		t.Errorf("it has a lease of %d s, %v", granted.GrantedTTL, err)
	}
	eventually(t, "the hold ends", func() bool { return len(storedKeys(t, admin, r.Name)) == 0 })
}

// A move to another lease that had no answer may be done late: not after the key was moved
// on, to a lease that its holder trusts.
func TestLateMoveToAnotherLease(t *testing.T) {
	b := shared(t)
	r := request("", driver.Exclusive)
	r.TTL, r.Fixed = 20*time.Second, true
	acquire(t, b, r)
	c := b.owners.get(r.Owner)
	first := c.modified
	unsure, err := b.leases.dedicated(t.Context(), 30*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	b.owners.leaseChanging(c, unsure)
	longer := r.Hold
	longer.TTL = time.Minute
	if err := b.Renew(t.Context(), []driver.Hold{longer})[0]; err != nil {
		t.Fatal(err)
	}
	late := &renewCall{b: b, ctx: t.Context()}
	if _, err := late.attachLease(c.key, c.created, first, unsure); !errors.Is(err, errMoved) {
		t.Errorf("the late move: %v", err)
	}
	if now := storedKeys(t, b, r.Name)[0].lease; now != c.lease.id {
		t.Errorf("the key has lease %x, and its holder trusts in %x", now, c.lease.id)
	}
	release(t, b, r)
}

// A fixed hold ends by itself while others of its TTL are renewed, and takes its lease
// with it when it is released.
func TestFixedHoldEndsByItself(t *testing.T) {
	t.Parallel()
	b, admin := shared(t), shared(t)
	for ttl := time.Second; ; ttl *= 4 {
		err := fixedHoldEnds(t, b, ttl)
		if err == nil {
			break
		}
		if ttl > time.Minute {
			t.Fatal(err)
		}
		t.Logf("a TTL of %v is too short for this machine: %v", ttl, err)
	}

	again := request("", driver.Exclusive)
	again.Fixed = true
	acquire(t, b, again)
	lease := storedKeys(t, admin, again.Name)[0].lease
	release(t, b, again)
	eventually(t, "the lease ends with the hold", func() bool {
		left, err := admin.client.TimeToLive(t.Context(), lease)
		return err == nil && left.TTL < 0
	})
}

// fixedHoldEnds waits until a fixed hold ends beside one of the same TTL that is renewed. It
// returns an error if the renewed one was lost.
func fixedHoldEnds(t *testing.T, b *Backend, ttl time.Duration) error {
	t.Helper()
	renewed, fixed := request("", driver.Exclusive), request("", driver.Exclusive)
	renewed.TTL, fixed.TTL, fixed.Fixed = ttl, ttl, true
	fixed, lost := withOnLost(fixed)
	for _, r := range []driver.Request{renewed, fixed} {
		if _, err := b.Acquire(t.Context(), r); err != nil {
			return err
		}
	}
	var err error
	eventually(t, "the fixed hold ends", func() bool {
		err = b.Renew(t.Context(), []driver.Hold{renewed.Hold})[0]
		return err != nil || len(storedKeys(t, b, fixed.Name)) == 0
	})
	if err == nil {
		awaitLost(t, lost)
	}
	return err
}

// Tries of fixed locks that are refused share a lease, which the first that is granted gets:
// each would else cost the servers one that is made and ended.
func TestRefusedFixedTriesShareALease(t *testing.T) {
	b, admin := shared(t), shared(t)
	r := request("", driver.Exclusive)
	acquire(t, b, r)
	var all []*lease
	next := func() driver.Request {
		n := request(r.Name, driver.Exclusive)
		n.Fixed = true
		return n
	}
	for range 3 {
		refused(t, b, next(), driver.ErrHeld)
		all = append(all, b.leases.spare)
	}
	if all[0] == nil || all[1] != all[0] || all[2] != all[0] {
		t.Errorf("leases of refused tries: %v", all)
	}
	release(t, b, r)
	granted, second := next(), request("", driver.Exclusive)
	second.Fixed = true
	if g := acquire(t, b, granted); g.TTL < granted.TTL {
		t.Errorf("granted for %v", g.TTL)
	}
	acquire(t, b, second)
	if one, two := storedKeys(t, admin, granted.Name)[0].lease, storedKeys(t, admin, second.Name)[0].lease; one != all[0].id || two == one {
		t.Errorf("holds have the leases %x and %x, the tries had %x", one, two, all[0].id)
	}
	// One that has ended is not given to anybody.
	refused(t, b, next(), driver.ErrHeld)
	if _, err := admin.client.Revoke(t.Context(), b.leases.spare.id); err != nil {
		t.Fatal(err)
	}
	third := request("", driver.Exclusive)
	third.Fixed = true
	acquire(t, b, third)
	// Only one is kept.
	for _, ttl := range []time.Duration{20 * time.Second, 40 * time.Second} {
		n := next()
		n.TTL = ttl
		refused(t, b, n, driver.ErrHeld)
	}
	b.leases.mu.Lock()
	defer b.leases.mu.Unlock()
	if want := 1 + 3 + 1; len(b.leases.all) != want {
		t.Errorf("%d leases, want %d", len(b.leases.all), want)
	}
}

// Attempts keep the shared lease alive that they use, so that a grant after a pause
// lives as long as any.
func TestLeaseIsFreshWhenUsed(t *testing.T) {
	b := shared(t)
	first, next := request("", driver.Exclusive), request("", driver.Exclusive)
	acquire(t, b, first)
	l := b.owners.get(first.Owner).lease
	l.mu.Lock()
	l.sent = l.sent.Add(-l.ttl * 6 / 10)
	l.mu.Unlock()
	if g := acquire(t, b, next); g.TTL < next.TTL {
		t.Errorf("granted for %v of %v", g.TTL, next.TTL)
	}
	if b.owners.get(next.Owner).lease != l {
		t.Error("another lease")
	}
}

// A lease that nobody uses ends, and the next lock has a new one.
func TestIdleLeaseEnds(t *testing.T) {
	t.Parallel()
	b := shared(t)
	r := request("", driver.Exclusive)
	r.TTL = 3 * time.Second
	acquire(t, b, r)
	l := b.owners.get(r.Owner).lease
	release(t, b, r)
	eventually(t, "the idle lease has ended", func() bool {
		left, err := b.client.TimeToLive(t.Context(), l.id)
		return err == nil && left.TTL < 0
	})
	acquire(t, b, request(r.Name, driver.Exclusive))
}

// Close ends the leases, and what they hold, at once.
func TestCloseEndsTheSession(t *testing.T) {
	b, admin := shared(t), shared(t)
	r, fixed := request("", driver.Exclusive), request("", driver.Exclusive)
	fixed.Fixed = true
	acquire(t, b, r)
	acquire(t, b, fixed)
	w := queued(request(r.Name, driver.Exclusive))
	refused(t, b, w, driver.ErrHeld)
	b.Close()
	acquire(t, admin, request(r.Name, driver.Exclusive))
	acquire(t, admin, request(fixed.Name, driver.Exclusive))
}

// acquireForeign takes a lock as the official clients do.
func acquireForeign(t *testing.T, b *Backend, name string) (key string, lease clientv3.LeaseID) {
	t.Helper()
	l, err := b.client.Grant(t.Context(), 60)
	if err != nil {
		t.Fatal(err)
	}
	key = b.folder(name) + keySuffix(l.ID, "")
	key = key[:len(key)-1]
	if _, err := b.client.Put(t.Context(), key, "", clientv3.WithLease(l.ID)); err != nil {
		t.Fatal(err)
	}
	return key, l.ID
}

// A key of another program keeps everybody out, is shown, and can be deleted, but not its
// successor, which may have the same name.
func TestHoldsOfOtherPrograms(t *testing.T) {
	b := shared(t)
	for mode := driver.Exclusive; mode <= driver.Counted; mode++ {
		r := request("", mode)
		key, lease := acquireForeign(t, b, r.Name)
		refused(t, b, r, driver.ErrHeld)
		info, err := b.Inspect(t.Context(), r.Name)
		if err != nil || len(info.Holders) != 1 || info.Holders[0].Mode != driver.Exclusive || info.Holders[0].Left < 50*time.Second {
			t.Fatalf("%v: shown as %+v, %v", mode, info, err)
		}
		seen := driver.Hold{Name: r.Name, Owner: info.Holders[0].Owner, Mode: driver.Exclusive, TTL: r.TTL}
		if errs := b.Renew(t.Context(), []driver.Hold{seen}); !errors.Is(errs[0], driver.ErrLost) {
			t.Errorf("%v: renewed another program's hold: %v", mode, errs[0])
		}
		w := queued(request(r.Name, mode))
		refused(t, b, w, driver.ErrHeld)
		watch := armWatch(t, b, w)
		if err := b.Release(t.Context(), seen); err != nil {
			t.Fatalf("%v: force unlock: %v", mode, err)
		}
		awaitSignal(t, watch)
		acquire(t, b, w)
		watch.Close()
		release(t, b, w)
		if _, err := b.client.Put(t.Context(), key, "", clientv3.WithLease(lease)); err != nil {
			t.Fatal(err)
		}
		if err := b.Release(t.Context(), seen); !errors.Is(err, driver.ErrLost) {
			t.Errorf("%v: force unlock of a successor: %v", mode, err)
		}
		var listed []string
		if err := b.List(t.Context(), r.Name, func(name string) bool { listed = append(listed, name); return true }); err != nil || len(listed) != 1 {
			t.Errorf("%v: listed %q, %v", mode, listed, err)
		}
	}
}

// A key that lies beside the locks is no lock.
func TestListLeavesOutData(t *testing.T) {
	b := shared(t)
	name := request("", driver.Exclusive).Name
	for _, key := range []string{name, name + "/config", name + "/7587", name + "/a/b"} {
		if _, err := b.client.Put(t.Context(), key, "data"); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.List(t.Context(), name, func(name string) bool { t.Errorf("listed %q", name); return true }); err != nil {
		t.Error(err)
	}
}
