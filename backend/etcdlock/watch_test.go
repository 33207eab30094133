package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/faultproxy"
	"github.com/distlock/distlock/internal/testkit/locktest"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
)

// The next waiter retries without an event after its watch has started: a server may serve a new
// watch every 100 ms only, which is why concurrency.Mutex takes so long.
func TestNextWaiterPolls(t *testing.T) {
	b := shared(t)
	r := request("", driver.Exclusive)
	acquire(t, b, r)
	next := queued(request(r.Name, driver.Exclusive))
	refused(t, b, next, driver.ErrHeld)
	w := armWatch(t, b, next)
	defer w.Close()
	awaitSignal(t, w)
	refused(t, b, next, driver.ErrHeld)
}

func TestHolderIsNotifiedOfKeyDeletion(t *testing.T) {
	b, admin := shared(t), shared(t)
	for _, mode := range []driver.Mode{driver.Exclusive, driver.Read, driver.Counted} {
		r, lost := withOnLost(request("", mode))
		acquire(t, b, r)
		must.Get(admin.client.Delete(t.Context(), storedKeys(t, admin, r.Name)[0].key))(t)
		awaitLost(t, lost)
		if errs := b.Renew(t.Context(), []driver.Hold{r.Hold}); !errors.Is(errs[0], driver.ErrLost) {
			t.Errorf("%v: renew after the loss: %v", mode, errs[0])
		}
		expect.Be(t, b.Release(t.Context(), r.Hold), driver.ErrLost, mode, "release after the loss")
		acquire(t, admin, request(r.Name, mode))
		if len(lost) > 0 {
			t.Errorf("%v: notified twice", mode)
		}
	}
}

// A holder is notified when another connection deletes its key, and not after its own release.
func TestHolderIsNotifiedOfForceUnlock(t *testing.T) {
	b, admin := shared(t), shared(t)
	r, lost := withOnLost(request("", driver.Exclusive))
	quiet, none := withOnLost(request("", driver.Exclusive))
	acquire(t, b, r)
	acquire(t, b, quiet)
	info := must.Get(admin.Inspect(t.Context(), r.Name))(t)
	eventually(t, "both keys are watched", func() bool {
		b.owners.mu.Lock()
		defer b.owners.mu.Unlock()
		return b.owners.byOwner[r.Owner].watch != nil && b.owners.byOwner[quiet.Owner].watch != nil
	})
	release(t, b, quiet)
	must.OK(t, admin.Release(t.Context(), driver.Hold{Name: r.Name, Owner: info.Holders[0].Owner, Mode: driver.Exclusive}))
	awaitLost(t, lost)
	if len(none) > 0 {
		t.Error("notified of its own release")
	}
}

// A waiter that lost its key or its lease is notified, and queues again.
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
			must.OK(t, err)
			awaitSignal(t, watch)
			refused(t, b, w, driver.ErrHeld)
			all := storedKeys(t, admin, r.Name)
			if len(all) != 3 || all[2].owner != w.Owner {
				t.Fatalf("not at the end of the queue: %v", all)
			}
			// The watch has moved to the new blocker.
			release(t, admin, r)
			acquire(t, admin, behind)
			awaitQuiet(t, watch)
			release(t, admin, behind)
			awaitSignal(t, watch)
			acquire(t, b, w)
		})
	}
}

// Waiters need no compacted history, not even after their stream was opened again.
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
		resp := must.Get(admin.client.Put(t.Context(), "noise", fmt.Sprint(i)))(t)
		revision = resp.Header.Revision
	}
	must.Get(admin.client.Compact(t.Context(), revision))(t)
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
	must.Get(admin.client.Delete(t.Context(), storedKeys(t, admin, held.Name)[0].key))(t)
	awaitLost(t, lost)
}

// A server that hangs with its connections open delays a waiter by seconds only: the stream is opened
// again.
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

// countKeys makes a backend, and counts the keys that it reads in transactions.
func countKeys(t *testing.T) (*Backend, *atomic.Int64) {
	t.Helper()
	var keys atomic.Int64
	count := func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		err := invoke(ctx, method, req, reply, cc, opts...)
		if answer, ok := reply.(*pb.TxnResponse); ok {
			for _, r := range answer.Responses {
				keys.Add(int64(len(r.GetResponseRange().GetKvs())))
			}
		}
		return err
	}
	client := must.Get(clientv3.New(clientv3.Config{
		Endpoints: []string{testserver.SharedEtcd(t).Addr()}, Logger: zap.NewNop(),
		DialOptions: []grpc.DialOption{grpc.WithChainUnaryInterceptor(count)},
	}))(t)
	t.Cleanup(func() { client.Close() })
	return backendOf(t, client, nil), &keys
}

// A waiter in a long queue doesn't read all of it again and again, and is signalled in its turn.
func TestReadsInALongQueue(t *testing.T) {
	for _, mode := range []driver.Mode{driver.Exclusive, driver.Write, driver.Read, driver.Counted} {
		t.Run(mode.String(), func(t *testing.T) {
			holder := shared(t)
			b, read := countKeys(t)
			first := request("", driver.Write)
			if mode == driver.Exclusive || mode == driver.Counted {
				first.Mode = mode
			}
			acquire(t, holder, first)
			second := request(first.Name, mode)
			if mode == driver.Counted {
				acquire(t, holder, second)
			}
			var wg sync.WaitGroup
			line := make([]driver.Request, 60)
			for i := range line {
				line[i] = queued(request(first.Name, first.Mode))
				wg.Go(func() {
					expect.Be(t, expect.Err(holder.Acquire(t.Context(), line[i])), driver.ErrHeld)
				})
			}
			wg.Wait()
			last := queued(request(first.Name, mode))
			refused(t, b, last, driver.ErrHeld)
			w := armWatch(t, b, last)
			defer w.Close()
			for range 10 {
				read.Store(0)
				err := refused(t, b, last, driver.ErrHeld)
				held, _ := errors.AsType[*driver.HeldError](err)
				if read.Load() > 1 || len(held.Holders) != 1 || held.Holders[0].Owner != first.Owner {
					t.Fatalf("%d keys read: held by %+v", read.Load(), held.Holders)
				}
			}
			if mode == driver.Counted {
				release(t, holder, second)
			}
			release(t, holder, first)
			// Its key is the first by name, and the last by creation.
			refused(t, holder, queued(request(first.Name, mode)), driver.ErrHeld)
			if held, _ := errors.AsType[*driver.HeldError](refused(t, b, last, driver.ErrHeld)); len(held.Holders) != 0 {
				t.Errorf("held by one that is gone: %+v", held.Holders)
			}
			awaitQuiet(t, w)
			slices.SortFunc(line, func(a, b driver.Request) int { return int(createOf(holder, a) - createOf(holder, b)) })
			for i, r := range line {
				release(t, holder, r)
				if left := len(line) - 1 - i; left == 1 && mode != driver.Counted || left == last.Limit && mode == driver.Counted {
					refused(t, b, last, driver.ErrHeld)
				}
			}
			awaitSignal(t, w)
			acquire(t, b, last)
		})
	}
}

func createOf(b *Backend, r driver.Request) int64 { return b.owners.get(r.Owner).created }

// A backend on a closed client fails, and can be closed.
func TestClientThatWasClosed(t *testing.T) {
	t.Parallel()
	client := newClient(t, testserver.SharedEtcd(t).Addr())
	b := backendOf(t, client, nil)
	r, _ := withOnLost(request("", driver.Exclusive))
	acquire(t, b, r)
	w := queued(request(r.Name, driver.Exclusive))
	refused(t, b, w, driver.ErrHeld)
	watch := armWatch(t, b, w)
	client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if _, err := b.Acquire(ctx, w); err == nil || driver.Final(err) {
		t.Errorf("acquire: %v", err)
	}
	if err := b.Renew(ctx, []driver.Hold{r.Hold})[0]; err == nil || driver.Final(err) {
		t.Errorf("renew: %v", err)
	}
	watch.Close()
	start := time.Now()
	b.Close()
	if took := time.Since(start); took > testTimeout {
		t.Errorf("Close took %v, which waits for %v", took, closeTimeout)
	}
}

// A waiter behind holders only is said to be told of all that lets it in. One behind a place is not.
func TestWhoIsSignaled(t *testing.T) {
	b := openAt(t, testserver.SharedEtcd(t).Addr(), nil)
	for _, mode := range []driver.Mode{driver.Exclusive, driver.Write, driver.Counted} {
		held := request("", mode)
		held.Limit = 1
		must.Get(b.Acquire(t.Context(), held))(t)
		for place, want := range []bool{true, false} {
			w := held
			w.Owner, w.Queue = driver.NewOwner(), true
			for range 2 {
				expect.Equal(t, locktest.Held(t, b, w).Signaled, want, mode, "place", place)
			}
		}
	}
}
