package etcdlock

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// A hold that is renewed for longer than its lease lives moves to another lease, and keeps its key.
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
		// The hold doesn't need the old lease any more.
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
			t.Errorf("fixed %v: Inspect shows another fence than the grant had: %+v, %v", fixed, info, err)
		}
		release(t, b, r)
	}
}

// A move to another lease that had no answer can't be executed after the key has moved on.
func TestLateMoveToAnotherLease(t *testing.T) {
	b := shared(t)
	r := request("", driver.Exclusive)
	r.TTL, r.Fixed = 20*time.Second, true
	acquire(t, b, r)
	c := b.owners.get(r.Owner)
	first := c.modified
	moved, err := b.leases.dedicated(t.Context(), 30*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	b.owners.leaseChanging(c, moved)
	longer := r.Hold
	longer.TTL = time.Minute
	if err := b.Renew(t.Context(), []driver.Hold{longer})[0]; err != nil {
		t.Fatal(err)
	}
	late := &leaseRenewal{b: b, ctx: t.Context()}
	if _, err := late.attachLease(c.key, c.created, first, moved); !errors.Is(err, errMoved) {
		t.Errorf("the late move: %v", err)
	}
	if now := storedKeys(t, b, r.Name)[0].lease; now != c.lease.id {
		t.Errorf("the key has lease %x, and its holder trusts in %x", now, c.lease.id)
	}
	release(t, b, r)
}

// The longest TTL of the core is granted, and one that overflows is refused at once.
func TestTooLong(t *testing.T) {
	b := mustOpen(t, testserver.SharedEtcd(t).URL())
	for _, fixed := range []bool{false, true} {
		r := request("", driver.Exclusive)
		r.TTL, r.Fixed = driver.MaxTTL, fixed
		acquire(t, b, r)
		longer := r.Hold
		longer.TTL = math.MaxInt64
		if err := b.Renew(t.Context(), []driver.Hold{longer})[0]; !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("fixed %v: renewed for %v: %v", fixed, longer.TTL, err)
		}
		next := request("", driver.Exclusive)
		next.TTL, next.Fixed = longer.TTL, fixed
		refused(t, b, next, driver.ErrInvalid)
		release(t, b, r)
	}
}
