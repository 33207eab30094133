package etcdlock

import (
	"errors"
	"testing"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// acquireForeign acquires a lock as the official clients do.
func acquireForeign(t *testing.T, b *Backend, name string) (key string, lease clientv3.LeaseID) {
	t.Helper()
	l := must.Get(b.client.Grant(t.Context(), 60))(t)
	key = keyOf(b.folder(name), l.ID)
	must.Get(b.client.Put(t.Context(), key, "", clientv3.WithLease(l.ID)))(t)
	return key, l.ID
}

// A key of another program blocks all kinds of lock, is shown, and can be deleted; its successor of the
// same name can't.
func TestHoldsOfOtherPrograms(t *testing.T) {
	b := shared(t)
	for mode := driver.Exclusive; mode <= driver.Counted; mode++ {
		r := request("", mode)
		key, lease := acquireForeign(t, b, r.Name)
		refused(t, b, r, driver.ErrHeld)
		info, err := b.Inspect(t.Context(), r.Name)
		if err != nil || len(info.Holders) != 1 || info.Holders[0].Mode != driver.Exclusive || info.Holders[0].Foreign || info.Holders[0].Left < 50*time.Second {
			t.Fatalf("%v: shown as %+v, %v", mode, info, err)
		}
		seen := driver.Hold{Name: r.Name, Owner: info.Holders[0].Owner, Mode: driver.Exclusive, TTL: r.TTL}
		if errs := b.Renew(t.Context(), []driver.Hold{seen}); !errors.Is(errs[0], driver.ErrLost) {
			t.Errorf("%v: renewed another program's hold: %v", mode, errs[0])
		}
		w := queued(request(r.Name, mode))
		refused(t, b, w, driver.ErrHeld)
		watch := armWatch(t, b, w)
		must.OK(t, b.Release(t.Context(), seen), mode, "force unlock")
		awaitSignal(t, watch)
		acquire(t, b, w)
		watch.Close()
		release(t, b, w)
		must.Get(b.client.Put(t.Context(), key, "", clientv3.WithLease(lease)))(t)
		expect.Be(t, b.Release(t.Context(), seen), driver.ErrLost, mode, "force unlock of a successor")
		var listed []string
		if err := b.List(t.Context(), r.Name, func(name string) bool { listed = append(listed, name); return true }); err != nil || len(listed) != 1 {
			t.Errorf("%v: listed %q, %v", mode, listed, err)
		}
	}
}

// A key without a lease is no lock.
func TestListLeavesOutData(t *testing.T) {
	b := shared(t)
	name := request("", driver.Exclusive).Name
	for _, key := range []string{name, name + "/config", name + "/7587", name + "/a/b"} {
		must.Get(b.client.Put(t.Context(), key, "data"))(t)
	}
	expect.OK(t, b.List(t.Context(), name, func(name string) bool { t.Errorf("listed %q", name); return true }))
}

// A key without a lease blocks a lock, and is never deleted as if it were a hold.
func TestForceUnlockLeavesData(t *testing.T) {
	b := shared(t)
	c := must.Get(distlock.New(b, nil))(t)
	defer c.Close()
	name := request("", driver.Exclusive).Name
	must.Get(b.client.Put(t.Context(), name+"/config", "data"))(t)
	refused(t, b, request(name, driver.Exclusive), driver.ErrHeld)
	info, err := c.Inspect(t.Context(), name)
	if err != nil || len(info.Holders) != 1 || !info.Holders[0].Foreign {
		t.Fatalf("shown as %+v, %v; want one foreign holder", info, err)
	}
	expect.Be(t, c.ForceUnlock(t.Context(), info), distlock.ErrInvalid, "force unlock")
	if keys := storedKeys(t, b, name); len(keys) != 1 {
		t.Errorf("keys after a force unlock: %+v", keys)
	}
}
