package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/faultproxy"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// awaitLost waits for an OnLost.
func awaitLost(t testing.TB, lost <-chan struct{}) {
	t.Helper()
	select {
	case <-lost:
	case <-time.After(testTimeout):
		t.Fatal("nobody told the holder")
	}
}

// awaitQuiet waits until a watch has been silent for a while.
func awaitQuiet(t testing.TB, w driver.Watch) {
	t.Helper()
	eventually(t, "the watch is quiet", func() bool {
		select {
		case <-w.Ready:
			return false
		case <-time.After(100 * time.Millisecond):
			return true
		}
	})
}

// withOnLost makes a request that says on a channel when it is lost.
func withOnLost(r driver.Request) (driver.Request, chan struct{}) {
	lost := make(chan struct{}, 2)
	r.OnLost = func() { lost <- struct{}{} }
	return r, lost
}

func TestHolderIsNotifiedOfKeyDeletion(t *testing.T) {
	b, admin := shared(t), shared(t)
	for _, mode := range []driver.Mode{driver.Exclusive, driver.Read, driver.Counted} {
		r, lost := withOnLost(request("", mode))
		acquire(t, b, r)
		if _, err := admin.client.Delete(t.Context(), storedKeys(t, admin, r.Name)[0].key); err != nil {
			t.Fatal(err)
		}
		awaitLost(t, lost)
		if errs := b.Renew(t.Context(), []driver.Hold{r.Hold}); !errors.Is(errs[0], driver.ErrLost) {
			t.Errorf("%v: renew after the loss: %v", mode, errs[0])
		}
		if err := b.Release(t.Context(), r.Hold); !errors.Is(err, driver.ErrLost) {
			t.Errorf("%v: release after the loss: %v", mode, err)
		}
		acquire(t, admin, request(r.Name, mode))
		if len(lost) > 0 {
			t.Errorf("%v: told twice", mode)
		}
	}
}

// A break by another connection is heard too, and one's own release is not.
func TestHolderIsNotifiedOfForceUnlock(t *testing.T) {
	b, admin := shared(t), shared(t)
	r, lost := withOnLost(request("", driver.Exclusive))
	quiet, none := withOnLost(request("", driver.Exclusive))
	acquire(t, b, r)
	acquire(t, b, quiet)
	info, err := admin.Inspect(t.Context(), r.Name)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "both keys are watched", func() bool {
		b.owners.mu.Lock()
		defer b.owners.mu.Unlock()
		return b.owners.byOwner[r.Owner].watch != nil && b.owners.byOwner[quiet.Owner].watch != nil
	})
	release(t, b, quiet)
	if err := admin.Release(t.Context(), driver.Hold{Name: r.Name, Owner: info.Holders[0].Owner, Mode: driver.Exclusive}); err != nil {
		t.Fatal(err)
	}
	awaitLost(t, lost)
	if len(none) > 0 {
		t.Error("told of its own release")
	}
}

// The end of the lease is the end of all its holds, a fact; later ones get a new lease.
func TestEndOfTheLease(t *testing.T) {
	b, admin := shared(t), shared(t)
	one, lostOne := withOnLost(request("", driver.Exclusive))
	two, lostTwo := withOnLost(request("", driver.Write))
	acquire(t, b, one)
	acquire(t, b, two)
	old := storedKeys(t, admin, one.Name)[0].lease
	if _, err := admin.client.Revoke(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	errs := b.Renew(t.Context(), []driver.Hold{one.Hold, two.Hold})
	if !errors.Is(errs[0], driver.ErrLost) || !errors.Is(errs[1], driver.ErrLost) {
		t.Errorf("renew after the lease's end: %v", errs)
	}
	three := request("", driver.Exclusive)
	if g := acquire(t, b, three); g.TTL < 29*time.Second {
		t.Errorf("granted for %v", g.TTL)
	}
	if now := storedKeys(t, admin, three.Name)[0].lease; now == old {
		t.Error("the next hold has the lease that ended")
	}
	// Renew has told already what a watch may have been quicker to tell.
	if len(lostOne)+len(lostTwo) > 2 {
		t.Error("told twice")
	}
}

// A lease that has ended unnoticed costs an attempt nothing but time.
func TestAcquireOnALeaseThatHasEnded(t *testing.T) {
	b, admin := shared(t), shared(t)
	for i, queue := range []bool{true, false} {
		first := request("", driver.Exclusive)
		acquire(t, b, first)
		if _, err := admin.client.Revoke(t.Context(), storedKeys(t, admin, first.Name)[0].lease); err != nil {
			t.Fatal(err)
		}
		r := request("", driver.Exclusive)
		r.Queue = queue
		acquire(t, b, r)
		if len(storedKeys(t, admin, r.Name)) != 1 {
			t.Errorf("case %d: no key", i)
		}
	}
}

// A waiter that lost its place, by its key's deletion or its lease's end, hears of it and
// takes a new one.
func TestWaiterTakesANewPlace(t *testing.T) {
	for _, how := range []string{"key", "lease"} {
		t.Run(how, func(t *testing.T) {
			b, admin := shared(t), shared(t)
			r := request("", driver.Exclusive)
			acquire(t, admin, r)
			w := queued(request(r.Name, driver.Exclusive))
			refused(t, b, w, driver.ErrHeld)
			watch := armWatch(t, b, w)
			defer watch.Close()
			refused(t, b, w, driver.ErrHeld)
			behind := queued(request(r.Name, driver.Exclusive))
			refused(t, admin, behind, driver.ErrHeld)

			place := storedKeys(t, admin, r.Name)[1]
			var err error
			if how == "key" {
				_, err = admin.client.Delete(t.Context(), place.key)
			} else {
				_, err = admin.client.Revoke(t.Context(), place.lease)
			}
			if err != nil {
				t.Fatal(err)
			}
			awaitSignal(t, watch)
			refused(t, b, w, driver.ErrHeld)
			all := storedKeys(t, admin, r.Name)
			if len(all) != 3 || all[2].owner != w.Owner {
				t.Fatalf("not at the end of the line: %v", all)
			}
			// The watch has moved to the one that is before it now.
			release(t, admin, r)
			acquire(t, admin, behind)
			awaitQuiet(t, watch)
			release(t, admin, behind)
			awaitSignal(t, watch)
			acquire(t, b, w)
		})
	}
}

// History that was compacted while somebody waited is of no use to anybody: not even a
// stream that has to be opened anew needs it.
func TestCompactionWhileWaiting(t *testing.T) {
	srv := testserver.Etcd(t, testserver.EtcdOptions{})
	p := faultproxy.New(t, srv.Addr())
	b, admin := openAt(t, p.Addr(), nil), openAt(t, srv.Addr(), nil)
	held, lost := withOnLost(request("", driver.Exclusive))
	acquire(t, b, held)
	r := request("", driver.Exclusive)
	acquire(t, admin, r)
	w := queued(request(r.Name, driver.Exclusive))
	refused(t, b, w, driver.ErrHeld)
	watch := armWatch(t, b, w)
	defer watch.Close()
	eventually(t, "the hold is watched", func() bool {
		b.owners.mu.Lock()
		defer b.owners.mu.Unlock()
		return b.owners.byOwner[held.Owner].watch != nil
	})
	var revision int64
	for i := range 20 {
		resp, err := admin.client.Put(t.Context(), "noise", fmt.Sprint(i))
		if err != nil {
			t.Fatal(err)
		}
		revision = resp.Header.Revision
	}
	if _, err := admin.client.Compact(t.Context(), revision); err != nil {
		t.Fatal(err)
	}
	p.Silence()
	release(t, admin, r)
	p.Pass()
	awaitSignal(t, watch)
	for {
		_, err := b.Acquire(t.Context(), w)
		if err == nil {
			break
		}
		if errors.Is(err, driver.ErrHeld) || driver.Final(err) {
			t.Fatal(err)
		}
	}
	if _, err := admin.client.Delete(t.Context(), storedKeys(t, admin, held.Name)[0].key); err != nil {
		t.Fatal(err)
	}
	awaitLost(t, lost)
}

// A server that hangs, with its connections open, keeps a waiter from hearing for some
// seconds only: the stream is opened anew.
func TestStreamThatHangs(t *testing.T) {
	t.Parallel()
	srv := testserver.SharedEtcd(t)
	p := faultproxy.New(t, srv.Addr())
	b, admin := openAt(t, p.Addr(), nil), openAt(t, srv.Addr(), nil)
	r := request("", driver.Exclusive)
	acquire(t, admin, r)
	w := queued(request(r.Name, driver.Exclusive))
	refused(t, b, w, driver.ErrHeld)
	watch := armWatch(t, b, w)
	defer watch.Close()
	awaitQuiet(t, watch)
	b.stream.mu.Lock()
	b.stream.pending++ // an answer that never comes
	b.stream.mu.Unlock()
	awaitSignal(t, watch)
	release(t, admin, r)
	awaitSignal(t, watch)
	acquire(t, b, w)
}

// What was written for an Owner after its release, by a call that had been cut off, does
// not stay.
func TestLateKeyIsDeleted(t *testing.T) {
	b, admin := shared(t), shared(t)
	r := queued(request("", driver.Exclusive))
	other := request("", driver.Exclusive)
	acquire(t, b, other) // which makes the lease
	l := b.owners.get(other.Owner).lease
	c, err := b.owners.open(b.folder(r.Name), &r, l)
	if err != nil {
		t.Fatal(err)
	}
	b.recordFailure(c, l, context.DeadlineExceeded)
	if err := b.Release(t.Context(), r.Hold); !errors.Is(err, driver.ErrLost) {
		t.Fatalf("release of what is not there yet: %v", err)
	}
	if _, err := b.client.Do(t.Context(), putKey(c.key, l.id, &r, false)); err != nil {
		t.Fatal(err)
	}
	refused(t, admin, request(r.Name, driver.Exclusive), driver.ErrHeld)
	refused(t, b, r, driver.ErrInvalid)
	eventually(t, "the late key is deleted", func() bool { return len(storedKeys(t, admin, r.Name)) == 0 })
	acquire(t, admin, request(r.Name, driver.Exclusive))
}
