package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/testserver"
	"google.golang.org/grpc"
)

// busyFolder makes a backend before whose transactions write is called, with the number of transactions that were sent. It
// counts those of attempts.
func busyFolder(t *testing.T, opts *Options, write func(n int32)) (b *Backend, sent *atomic.Int32) {
	t.Helper()
	sent = &atomic.Int32{}
	b = backendOf(t, newClientWith(t, testserver.SharedEtcd(t).Addr(), func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		if method == "/etcdserverpb.KV/Txn" {
			write(sent.Add(1))
		}
		return invoke(ctx, method, req, reply, cc, opts...)
	}), opts)
	return b, sent
}

// A try answers after a bounded number of requests, though before each of them another key is written in the folder of the
// lock: a key of a lock with a longer name, or of another reader.
func TestTryInABusyFolder(t *testing.T) {
	t.Parallel()
	admin := shared(t)
	for what, c := range map[string]struct {
		mode  driver.Mode
		other func(name string, n int32) driver.Request
		most  int32
	}{
		"longer names": {driver.Exclusive, func(name string, n int32) driver.Request {
			return request(fmt.Sprint(name, "/", n), driver.Exclusive)
		}, 3},
		"readers": {driver.Read, func(name string, _ int32) driver.Request { return request(name, driver.Read) }, 3},
	} {
		t.Run(what, func(t *testing.T) {
			r := request("", c.mode)
			b, sent := busyFolder(t, nil, func(n int32) { acquire(t, admin, c.other(r.Name, n)) })
			acquire(t, b, r)
			if n := sent.Load(); n > c.most {
				t.Errorf("an attempt needs %d requests, want at most %d", n, c.most)
			}
			release(t, b, r)
		})
	}
}

// A lock that another one takes between the requests of a try is refused, and nothing of the try is left.
func TestTryThatComesTooLate(t *testing.T) {
	t.Parallel()
	admin := shared(t)
	r, other := request("", driver.Exclusive), request("", driver.Exclusive)
	other.Name = r.Name
	acquire(t, admin, request(r.Name+"/longer", driver.Exclusive))
	b, _ := busyFolder(t, nil, func(n int32) {
		if n == 2 {
			acquire(t, admin, other)
		}
	})
	_, err := b.Acquire(t.Context(), r)
	if held := (*driver.HeldError)(nil); !errors.As(err, &held) || len(held.Holders) != 1 || held.Holders[0].Owner != other.Owner {
		t.Errorf("%v, want that the other one holds", err)
	}
	if q := storedKeys(t, admin, r.Name); len(q) != 1 {
		t.Errorf("%d keys are left, want that of the holder", len(q))
	}
	release(t, admin, other)
	acquire(t, b, r)
	release(t, b, r)
}
