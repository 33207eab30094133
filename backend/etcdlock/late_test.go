package etcdlock

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock/distlock/driver"
)

// A key to which something may still come is deleted now and then, and nobody else gets
// it until nothing can be on its way any more.
func TestTombstoneKeepsKeyFromReuse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ages []time.Duration
		start := time.Now()
		var s tombstones
		s.init(func(_ context.Context, keys []string) error {
			if len(keys) > 0 {
				ages = append(ages, time.Since(start))
			}
			return nil
		})
		defer s.close()
		s.add("key", "owner")
		time.Sleep(tombstoneLife)
		synctest.Wait()
		if !s.has("key") || !s.hasOwner("owner") {
			t.Error("it may be used again while a deletion may be on its way")
		}
		if len(ages) != len(deleteAges) || !slices.IsSorted(ages) || ages[len(ages)-1] > tombstoneLife*2/3 {
			t.Errorf("deleted after %v, want about %v", ages, deleteAges)
		}
		time.Sleep(tombstoneLife)
		synctest.Wait()
		if s.has("key") || s.hasOwner("owner") {
			t.Error("it is kept for ever")
		}
	})
}

// The release of a key that nobody knows to be there may come to it late.
func TestKeyOfAnUnknownReleaseIsNotReused(t *testing.T) {
	b := shared(t)
	other := request("", driver.Exclusive)
	acquire(t, b, other) // which makes the lease
	l := b.owners.get(other.Owner).lease
	r := queued(request("", driver.Exclusive))
	c, err := b.owners.open(b.folder(r.Name), &r, l)
	if err != nil {
		t.Fatal(err)
	}
	gone, cancel := context.WithTimeout(t.Context(), time.Nanosecond)
	defer cancel()
	<-gone.Done()
	b.recordFailure(c, l, context.DeadlineExceeded)
	if err := b.Release(gone, r.Hold); err == nil {
		t.Fatal("released without a context")
	}
	release := b.Release(t.Context(), r.Hold)
	next := request(r.Name, driver.Exclusive)
	acquire(t, b, next)
	if key := b.owners.get(next.Owner).key; key == c.key {
		t.Errorf("the next holder has the key %s, to which a deletion may still come; %v", key, release)
	}
}
