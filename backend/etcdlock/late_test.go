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
func TestLateKeyIsNotUsedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ages []time.Duration
		start := time.Now()
		var s late
		s.init(func(_ context.Context, keys []string) error {
			if len(keys) > 0 {
				ages = append(ages, time.Since(start))
			}
			return nil
		})
		defer s.close()
		s.add("key", "owner")
		time.Sleep(barTime)
		synctest.Wait()
		if !s.has("key") || !s.bars("owner") {
			t.Error("it may be used again while a deletion may be on its way")
		}
		if len(ages) != len(lateAges) || !slices.IsSorted(ages) || ages[len(ages)-1] > barTime*2/3 {
			t.Errorf("deleted after %v, want about %v", ages, lateAges)
		}
		time.Sleep(barTime)
		synctest.Wait()
		if s.has("key") || s.bars("owner") {
			t.Error("it is kept for ever")
		}
	})
}

// The release of a key that nobody knows to be there may come to it late.
func TestKeyOfAnUnknownReleaseIsNotUsedAgain(t *testing.T) {
	b := shared(t)
	other := request("", driver.Exclusive)
	acquire(t, b, other) // which makes the lease
	l := b.claims.get(other.Owner).lease
	r := queued(request("", driver.Exclusive))
	c, err := b.open(&r, l)
	if err != nil {
		t.Fatal(err)
	}
	gone, cancel := context.WithTimeout(t.Context(), time.Nanosecond)
	defer cancel()
	<-gone.Done()
	b.failed(c, l, context.DeadlineExceeded)
	if err := b.Release(gone, r.Hold); err == nil {
		t.Fatal("released without a context")
	}
	release := b.Release(t.Context(), r.Hold)
	next := request(r.Name, driver.Exclusive)
	acquire(t, b, next)
	if key := b.claims.get(next.Owner).key; key == c.key {
		t.Errorf("the next holder has the key %s, to which a deletion may still come; %v", key, release)
	}
}
