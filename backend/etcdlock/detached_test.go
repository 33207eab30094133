package etcdlock

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/testserver"
	clientv3 "go.etcd.io/etcd/client/v3"
)

func detached(t testing.TB) *Backend {
	t.Helper()
	return openAt(t, testserver.SharedEtcd(t).Addr(), &Options{Detached: true})
}

// brief is a request for the shortest TTL.
func brief(name string) driver.Request {
	r := request(name, driver.Exclusive)
	r.TTL = 2 * time.Second
	return r
}

func renew(t testing.TB, b *Backend, r driver.Request) {
	t.Helper()
	if err := b.Renew(t.Context(), []driver.Hold{r.Hold})[0]; err != nil {
		t.Fatalf("renew: %v", err)
	}
}

func onlyKey(t testing.TB, b *Backend, name string) lockKey {
	t.Helper()
	q := storedKeys(t, b, name)
	if len(q) != 1 {
		t.Fatalf("got %d keys, want 1", len(q))
	}
	return q[0]
}

// Two connections renew one hold in turn, for longer than their timers and than the lease of one of them.
func TestDetachedHoldGoesToAndFro(t *testing.T) {
	t.Parallel()
	ttl := brief("").TTL
	for !goesToAndFro(t, ttl) { // the machine was too slow
		ttl *= 3
	}
}

// goesToAndFro returns false if the hold may rightly have ended.
func goesToAndFro(t *testing.T, ttl time.Duration) bool {
	t.Helper()
	one, two := detached(t), detached(t)
	r := brief("")
	r.TTL = ttl
	last := time.Now()
	acquire(t, one, r)
	for i := range 8 {
		time.Sleep(ttl * 3 / 8)
		start := time.Now()
		err := []*Backend{two, one}[i%2].Renew(t.Context(), []driver.Hold{r.Hold})[0]
		if time.Since(last) >= ttl {
			return false
		}
		if err != nil {
			t.Fatalf("renewal %d: %v", i+1, err)
		}
		last = start
	}
	err := two.Release(t.Context(), r.Hold)
	if time.Since(last) >= ttl {
		return false
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := one.Renew(t.Context(), []driver.Hold{r.Hold})[0]; !errors.Is(err, driver.ErrLost) {
		t.Errorf("renewed after its release: %v", err)
	}
	return true
}

// A renewal writes only if another connection has written last. The fence stays visible.
func TestDetachedRenewalWrites(t *testing.T) {
	t.Parallel()
	one, two := detached(t), detached(t)
	r := request("", driver.Exclusive)
	g := acquire(t, one, r)
	for i, step := range []struct {
		b      *Backend
		writes bool
	}{{one, false}, {one, false}, {two, true}, {two, false}, {one, true}, {one, false}} {
		before := onlyKey(t, one, r.Name).modified
		renew(t, step.b, r)
		if wrote := onlyKey(t, one, r.Name).modified != before; wrote != step.writes {
			t.Errorf("renewal %d wrote: %v, want %v", i+1, wrote, step.writes)
		}
		info, err := one.Inspect(t.Context(), r.Name)
		if err != nil || len(info.Holders) != 1 || info.Holders[0].Fence != g.Fence {
			t.Errorf("after renewal %d: %+v, %v; want fence %d", i+1, info, err, g.Fence)
		}
	}
}

// The connection that has a key may promise a life until the moment in which another one's late write moves it.
func TestDetachedLateTakeOver(t *testing.T) {
	t.Parallel()
	for _, answered := range []bool{true, false} {
		one, two := detached(t), detached(t)
		r := request("", driver.Exclusive)
		acquire(t, one, r)
		k := onlyKey(t, two, r.Name)
		l, err := two.leases.forTTL(t.Context(), k.life())
		if err != nil {
			t.Fatal(err)
		}
		o := two.owners.takenOver(&r.Hold, &k, time.Now().Add(-r.TTL/2), k.life())
		before := time.Now()
		renew(t, one, r)
		resp, err := two.client.Txn(t.Context()).If(modifiedAt(k.key, k.modified)).Then(k.put(l)).Commit()
		if err != nil || !resp.Succeeded {
			t.Fatalf("the late write: %+v, %v", resp, err)
		}
		if answered {
			two.owners.written(o, &k, l, resp.Header.Revision)
		} else {
			two.expire(t.Context(), []*ownerState{expireNow(two, r.Owner)[0].o})
		}
		two.owners.mu.Lock()
		deadline := o.deadline
		two.owners.mu.Unlock()
		if deadline.Before(before.Add(r.TTL)) {
			t.Errorf("answered: %v: the hold ends %v before the promise", answered, before.Add(r.TTL).Sub(deadline))
		}
		onlyKey(t, one, r.Name)
	}
}

// The key of a hold that has moved is not taken for another Owner's, by those that share the lock with it.
func TestDetachedKeyThatHasMoved(t *testing.T) {
	t.Parallel()
	for _, queue := range []bool{false, true} {
		one, two := detached(t), detached(t)
		moved := request("", driver.Read)
		acquire(t, one, moved)
		renew(t, two, moved)
		one.expire(t.Context(), []*ownerState{expireNow(one, moved.Owner)[0].o})
		if one.owners.get(moved.Owner) != nil {
			t.Fatal("it is still known where it was")
		}
		beside := request(moved.Name, driver.Read)
		beside.Queue = queue
		acquire(t, one, beside)
		renew(t, two, moved)
		renew(t, one, beside)
		renew(t, one, moved)
		if q := storedKeys(t, one, moved.Name); len(q) != 2 {
			t.Errorf("got %d keys, want 2", len(q))
		}
		release(t, one, moved)
		release(t, two, beside)
	}
}

// A key that has moved keeps its name, which its first connection may give away again. An Owner that goes there with a
// key of its own does not delete the other one's.
func TestDetachedNameOfAKeyThatHasMoved(t *testing.T) {
	t.Parallel()
	one, two := detached(t), detached(t)
	moved := request("", driver.Exclusive)
	acquire(t, one, moved)
	renew(t, two, moved)
	one.expire(t.Context(), []*ownerState{expireNow(one, moved.Owner)[0].o})
	waits := request(moved.Name, driver.Exclusive)
	waits.Queue = true
	for i, b := range []*Backend{two, one, one, two} {
		if g, err := b.Acquire(t.Context(), waits); !errors.Is(err, driver.ErrHeld) {
			t.Fatalf("attempt %d beside the holder: %+v, %v", i+1, g, err)
		}
	}
	renew(t, two, moved)
	release(t, one, moved)
	acquire(t, one, waits)
	release(t, two, waits)
}

// Close leaves the leases of holds, and revokes the others.
func TestDetachedClose(t *testing.T) {
	t.Parallel()
	b, admin := detached(t), detached(t)
	kept, freed := request("", driver.Exclusive), brief("")
	acquire(t, b, kept)
	acquire(t, b, freed)
	used, unused := b.owners.get(kept.Owner).lease.id, b.owners.get(freed.Owner).lease.id
	release(t, b, freed)
	b.Close()
	for id, lives := range map[clientv3.LeaseID]bool{used: true, unused: false} {
		resp, err := admin.client.TimeToLive(t.Context(), id)
		if err != nil || (resp.TTL > 0) != lives {
			t.Errorf("the lease has %v s left, want it to live: %v; %v", resp, lives, err)
		}
	}
	release(t, admin, kept)
}

// expireNow begins to end an Owner's hold as if its TTL had passed.
func expireNow(b *Backend, owner string) []*expiring {
	o := b.owners.get(owner)
	b.owners.update(o, func() {
		b.owners.unschedule(o)
		o.deadline = time.Now().Add(-time.Millisecond)
		o.expiring, o.taken = true, true
	})
	return []*expiring{{o: o}}
}

// A server that allows few operations in a transaction gets several.
func TestDeletionsInSmallTransactions(t *testing.T) {
	t.Parallel()
	addr := testserver.Etcd(t, testserver.EtcdOptions{Args: []string{"--max-txn-ops", "6"}}).Addr()
	b, other := openAt(t, addr, &Options{Detached: true}), openAt(t, addr, nil)
	var due []*ownerState
	var names, keys []string
	for range 20 {
		r := request("", driver.Exclusive)
		acquire(t, b, r)
		due, names = append(due, expireNow(b, r.Owner)[0].o), append(names, r.Name)
	}
	b.expire(t.Context(), due)
	for _, name := range names {
		if n := len(storedKeys(t, b, name)); n > 0 {
			t.Fatalf("%s has %d keys after its end", name, n)
		}
		r := request(name, driver.Exclusive)
		acquire(t, other, r)
		keys = append(keys, onlyKey(t, other, name).key)
	}
	for _, b := range []*Backend{b, openAt(t, addr, nil)} {
		if n := len(b.deleteKeys(t.Context(), keys)); n != len(keys) {
			t.Errorf("%d of %d keys are deleted", n, len(keys))
		}
	}
	for _, name := range names {
		if n := len(storedKeys(t, b, name)); n > 0 {
			t.Errorf("%s has %d keys after their deletion", name, n)
		}
	}
}

// What a connection has sent before it went on with the key of another one does no harm when it arrives.
func TestDetachedLateCallsForAFormerKey(t *testing.T) {
	t.Parallel()
	for name, fates := range map[string][]txnFate{"adoption": {passed, heldBack}, "creation": {heldBack}} {
		t.Run(name, func(t *testing.T) {
			one, two := detached(t), detached(t)
			first, r := request("", driver.Exclusive), queued(request("", driver.Exclusive))
			r.Name, r.TTL = first.Name, time.Hour
			acquire(t, one, first)
			refused(t, one, r, driver.ErrHeld)
			kv := delayCalls(two)
			kv.next(fates...)
			refused(t, two, r, context.DeadlineExceeded)
			refused(t, two, r, driver.ErrHeld) // its place is the one of the other connection
			release(t, two, r)
			release(t, one, first)
			if name == "creation" {
				kv.deliver(t)
				eventually(t, "nothing is left", func() bool { return len(storedKeys(t, one, r.Name)) == 0 })
				return
			}
			next := request(r.Name, driver.Exclusive)
			next.TTL = r.TTL
			acquire(t, two, next)
			kv.deliver(t)
			if q := storedKeys(t, one, r.Name); q.find(next.Owner) < 0 {
				t.Error("the key of a hold is deleted")
			}
		})
	}
}

// A late creation of a key is ended after its Owner has gone on with another one: with a name of its own, since the key of
// another hold has the name, with the key of another connection, or with that of another lease.
func TestDetachedLateCreationOfAFormerKey(t *testing.T) {
	t.Parallel()
	for name, lock := range map[string]func(t *testing.T, one, two *Backend, kv *delayedKV) driver.Request{
		"name in use": func(t *testing.T, one, two *Backend, kv *delayedKV) driver.Request {
			moved := request("", driver.Exclusive)
			moved.TTL = time.Hour
			acquire(t, one, moved)
			renew(t, two, moved)
			one.expire(t.Context(), []*ownerState{expireNow(one, moved.Owner)[0].o})
			r := queued(request(moved.Name, driver.Exclusive))
			r.TTL = moved.TTL
			kv.next(heldBack)
			refused(t, one, r, context.DeadlineExceeded)
			refused(t, one, r, driver.ErrHeld)
			release(t, two, moved)
			return r
		},
		"longer TTL": func(t *testing.T, one, _ *Backend, kv *delayedKV) driver.Request {
			r := request("", driver.Exclusive)
			r.TTL = time.Hour
			kv.next(heldBack)
			refused(t, one, r, context.DeadlineExceeded)
			r.TTL *= 2
			return r
		},
		"try": func(t *testing.T, one, two *Backend, kv *delayedKV) driver.Request {
			r := request("", driver.Exclusive)
			r.TTL = time.Hour
			kv.next(heldBack)
			refused(t, one, r, context.DeadlineExceeded)
			acquire(t, two, r)
			return r
		},
	} {
		t.Run(name, func(t *testing.T) {
			one, two := detached(t), detached(t)
			kv := delayCalls(one)
			r := lock(t, one, two, kv)
			acquire(t, one, r)
			release(t, one, r)
			kv.deliver(t)
			eventually(t, "nothing is left", func() bool { return len(storedKeys(t, two, r.Name)) == 0 })
		})
	}
}

// A key that the user may not touch now does not keep the other keys of its batch, and is deleted once the user may again.
func TestDeletionsBesideAForbiddenKey(t *testing.T) {
	t.Parallel()
	for _, detached := range []bool{true, false} {
		srv := testserver.Etcd(t, testserver.EtcdOptions{Password: "s3cret"})
		both := func(prefix string) testserver.EtcdGrant {
			return testserver.EtcdGrant{Prefix: prefix, Read: true, Write: true}
		}
		all := mustOpen(t, srv.AddUser("all", "x", both("locks/"))+"/locks")
		u := srv.AddUser("some", "x", both("locks/a/"), both("locks/b/"), both("locks/c/"))
		if detached {
			u += "/locks?detached=true"
		} else {
			u += "/locks"
		}
		b, holder := mustOpen(t, u), mustOpen(t, u)
		if detached {
			holder = b
		}
		var due []*ownerState
		var keys []string
		for _, name := range []string{"a", "b", "c"} {
			r := request(name, driver.Exclusive)
			acquire(t, holder, r)
			keys = append(keys, onlyKey(t, all, name).key)
			if detached {
				due = append(due, expireNow(b, r.Owner)[0].o)
			}
		}
		srv.RevokePrefix("some", "locks/b/")
		if detached {
			forbidden := due[1]
			eventually(t, "a forbidden key is asked for again, less often", func() bool {
				began, pause := time.Now(), time.Duration(0)
				b.expire(t.Context(), due)
				b.owners.update(forbidden, func() { pause = forbidden.due.Sub(began) })
				due = []*ownerState{expireNow(b, forbidden.owner)[0].o} // a slow server may have been asked in vain
				return pause >= expireRefused
			})
		} else if done := b.deleteKeys(t.Context(), keys); len(done) != len(keys)-1 || slices.Contains(done, keys[1]) {
			t.Errorf("deleted: %v, want all but the second of %v", done, keys)
		}
		for _, name := range []string{"a", "c"} {
			eventually(t, "the key of "+name+" is deleted", func() bool { return len(storedKeys(t, all, name)) == 0 })
		}
		onlyKey(t, all, "b")
		if detached {
			srv.GrantPrefix("some", both("locks/b/"))
			b.expire(t.Context(), due) // a slow server may have been asked in vain: then it is due again soon
			eventually(t, "the key of b is deleted", func() bool { return len(storedKeys(t, all, "b")) == 0 })
		}
	}
}

// A deletion that was decided on before a renewal, and arrives after it, does no harm.
func TestDetachedRenewalBesideADeletion(t *testing.T) {
	t.Parallel()
	for name, by := range map[string]func(own, other *Backend) *Backend{
		"own connection":     func(own, _ *Backend) *Backend { return own },
		"another connection": func(_, other *Backend) *Backend { return other },
	} {
		t.Run(name, func(t *testing.T) {
			own, other := detached(t), detached(t)
			r := request("", driver.Exclusive)
			acquire(t, own, r)
			all := expireNow(own, r.Owner)
			own.readExpiring(t.Context(), all)
			own.owners.confirm(all, own.leases.has)
			if all[0].again || all[0].mine != 1 {
				t.Fatalf("not to be deleted: %+v", all[0])
			}
			renew(t, by(own, other), r)
			own.deleteExpiring(t.Context(), all)
			own.finishExpiring(all[0])
			renew(t, other, r)
			renew(t, own, r)
			refused(t, other, request(r.Name, driver.Exclusive), driver.ErrHeld)
		})
	}
}

// A deletion without an answer makes renewals write until it can't be executed any more.
func TestDetachedDeletionWithoutAnswer(t *testing.T) {
	t.Parallel()
	own := detached(t)
	r := request("", driver.Exclusive)
	acquire(t, own, r)
	all := expireNow(own, r.Owner)
	own.readExpiring(t.Context(), all)
	own.owners.confirm(all, own.leases.has)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	own.deleteExpiring(gone, all) // not sent
	own.finishExpiring(all[0])
	own.owners.update(all[0].o, func() { own.owners.unschedule(all[0].o) }) // the next attempt, which a busy machine might meet
	before := onlyKey(t, own, r.Name).modified
	renew(t, own, r)
	if onlyKey(t, own, r.Name).modified == before {
		t.Error("a renewal relies on a key that may be deleted")
	}
	late := []*expiring{{o: all[0].o, keys: all[0].keys, mine: 1}}
	own.deleteExpiring(t.Context(), late) // executed late
	renew(t, own, r)
	before = onlyKey(t, own, r.Name).modified
	renew(t, own, r)
	if onlyKey(t, own, r.Name).modified != before {
		t.Error("renewals go on writing")
	}
}

// The keys of an attempt without an answer end with its TTL though the connection goes on, also keys that it
// writes later.
func TestDetachedAttemptWithoutAnswer(t *testing.T) {
	t.Parallel()
	b := detached(t)
	kept, r := request("", driver.Exclusive), queued(brief(""))
	acquire(t, b, kept) // its lease lives on
	l := b.owners.get(kept.Owner).lease
	o, err := b.owners.open(b.folder(r.Name), &r, l)
	if err != nil {
		t.Fatal(err)
	}
	b.recordFailure(o, l, context.DeadlineExceeded)
	arrives := func() {
		t.Helper()
		if _, err := b.client.Do(t.Context(), putKey(o.key, l, &r, false)); err != nil {
			t.Fatal(err)
		}
	}
	ends := func() {
		t.Helper()
		eventually(t, "the key is deleted", func() bool { return len(storedKeys(t, b, r.Name)) == 0 })
		if resp, err := b.client.TimeToLive(t.Context(), l.id); err != nil || resp.TTL <= 0 {
			t.Fatalf("the lease has ended: %v %v", resp, err)
		}
	}
	arrives()
	ends()
	arrives()
	ends()
}

// A place whose connection was lost lets the next one in after its turn.
func TestDetachedPlaceOfALostConnection(t *testing.T) {
	t.Parallel()
	lost, b := detached(t), detached(t)
	holder := request("", driver.Exclusive)
	acquire(t, b, holder)
	refused(t, lost, queued(request(holder.Name, driver.Exclusive)), driver.ErrHeld)
	lost.client.Close()
	release(t, b, holder)
	next := queued(request(holder.Name, driver.Exclusive))
	since := time.Now()
	eventually(t, "the place is passed", func() bool {
		_, err := b.Acquire(t.Context(), next)
		return err == nil
	})
	if waited := time.Since(since); waited < driver.TurnLife {
		t.Errorf("the place was passed after %v, before its turn of %v was over", waited, driver.TurnLife)
	}
}

// An answer relies on a lease only if its whole TTL is left.
func TestDetachedLeaseIsGoodForTheTTL(t *testing.T) {
	t.Parallel()
	b := detached(t)
	ttl := brief("").TTL
	for _, missing := range []time.Duration{time.Hour, 100 * time.Millisecond, -100 * time.Millisecond, -400 * time.Millisecond} {
		l, err := b.leases.forTTL(t.Context(), ttl)
		if err != nil {
			t.Fatal(err)
		}
		if missing < time.Hour {
			l.mu.Lock()
			l.reply.sent = time.Now().Add(ttl - missing - l.reply.ttl)
			l.mu.Unlock()
		}
		start := time.Now()
		if l, err = b.leases.forTTL(t.Context(), ttl); err != nil || l.lastReply().expiry().Before(start.Add(ttl)) {
			t.Errorf("with %v less than the TTL left, the lease ends in %v, want %v; %v", missing, l.lastReply().expiry().Sub(start), ttl, err)
		}
	}
}

func BenchmarkTakeOver(b *testing.B) {
	one, two := detached(b), detached(b)
	var holds []driver.Hold
	for range 1000 {
		r := request("", driver.Exclusive)
		acquire(b, one, r)
		holds = append(holds, r.Hold)
	}
	for i := 0; b.Loop(); i++ {
		for _, err := range []*Backend{two, one}[i%2].Renew(b.Context(), holds) {
			if err != nil {
				b.Fatal(err)
			}
		}
	}
}

// An attempt that has found the key of an earlier one, and whose own write got lost, grants nothing once that key is
// gone: another hold may have come since.
func TestRecoveredKeyThatIsGone(t *testing.T) {
	t.Parallel()
	for what, known := range map[string]bool{"its revision is known": true, "its revision is not known": false} {
		one, two := detached(t), detached(t)
		r := request("", driver.Exclusive)
		acquire(t, one, r)
		own := onlyKey(t, one, r.Name)
		l, err := two.leases.forTTL(t.Context(), r.TTL)
		if err != nil {
			t.Fatal(err)
		}
		o, err := two.owners.open(two.folder(r.Name), &r, l)
		if err != nil {
			t.Fatal(err)
		}
		two.recoverKey(o, &own, l)
		if !known {
			two.owners.update(o, func() { o.modified = 0 })
		}
		release(t, one, r)
		acquire(t, detached(t), request(r.Name, driver.Exclusive)) // under another key
		if _, err := two.Acquire(t.Context(), r); !errors.Is(err, driver.ErrHeld) {
			t.Errorf("%s: %v, want ErrHeld", what, err)
		}
	}
}
