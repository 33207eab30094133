package etcdlock

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/testserver"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
)

// countKeys is a backend, and how many keys servers' answers have brought it.
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
	client, err := clientv3.New(clientv3.Config{
		Endpoints: []string{testserver.SharedEtcd(t).Addr()}, Logger: zap.NewNop(),
		DialOptions: []grpc.DialOption{grpc.WithChainUnaryInterceptor(count)},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return backendOf(t, client, nil), &keys
}

// Who waits in a long line does not read all of it again and again, and hears of its turn.
func TestReadsInALongLine(t *testing.T) {
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
					if _, err := holder.Acquire(t.Context(), line[i]); !errors.Is(err, driver.ErrHeld) {
						t.Error(err)
					}
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
			// Whose key is the first one's by name, and who stands behind all the others.
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
