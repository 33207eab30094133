package etcdlock

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
)

// countingBackend makes a backend that counts its calls, and the messages that it sends on streams.
func countingBackend(t *testing.T, sent *atomic.Int64) *Backend {
	t.Helper()
	client := must.Get(clientv3.New(clientv3.Config{
		Endpoints: []string{testserver.SharedEtcd(t).Addr()}, Logger: zap.NewNop(),
		DialOptions: []grpc.DialOption{
			grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
				sent.Add(1)
				return invoke(ctx, method, req, reply, cc, opts...)
			}),
			grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
				s, err := open(ctx, desc, cc, method, opts...)
				return &countedStream{s, sent}, err
			}),
		},
	}))(t)
	t.Cleanup(func() { client.Close() })
	return backendOf(t, client, nil)
}

type countedStream struct {
	grpc.ClientStream
	sent *atomic.Int64
}

func (s *countedStream) SendMsg(m any) error {
	s.sent.Add(1)
	return s.ClientStream.SendMsg(m)
}

// A release wakes one waiter: what a turn costs doesn't grow with the queue, and everyone has the
// same number of turns.
func TestTurnsCostTheSame(t *testing.T) {
	for _, sessions := range []int{4, 16} {
		var sent, granted atomic.Int64
		turns := make([]int, sessions)
		name, total := request("", driver.Exclusive).Name, int64(sessions)*12
		first := request(name, driver.Exclusive)
		holder := shared(t)
		acquire(t, holder, first)
		var ready, done sync.WaitGroup
		ready.Add(sessions)
		for i := range sessions {
			b := countingBackend(t, &sent)
			done.Go(func() {
				here := sync.OnceFunc(ready.Done)
				for granted.Load() < total {
					if err := takeTurn(t.Context(), b, name, here); err != nil {
						t.Error(err)
						return
					}
					turns[i]++
					granted.Add(1)
				}
			})
		}
		ready.Wait()
		release(t, holder, first)
		done.Wait()
		n := granted.Load()
		t.Logf("%d sessions: %.1f messages for a turn; turns %v", sessions, float64(sent.Load())/float64(n), turns)
		if most := n * 10; sent.Load() > most { // five, the opening, and polls: more on a busy machine
			t.Errorf("%d sessions: %d messages for %d turns, want at most %d", sessions, sent.Load(), n, most)
		}
		for i, got := range turns {
			if got < 6 || got > 24 {
				t.Errorf("session %d has had %d of %d turns", i, got, n)
			}
		}
	}
}

// takeTurn acquires and releases as the core does for a name that was contended lately. It calls
// isQueued when it has a place.
func takeTurn(ctx context.Context, b *Backend, name string, isQueued func()) error {
	r := queued(request(name, driver.Exclusive))
	w, err := b.Watch(ctx, r)
	if err != nil {
		return err
	}
	defer w.Close()
	for {
		_, err := b.Acquire(ctx, r)
		if !errors.Is(err, driver.ErrHeld) {
			isQueued()
			return errors.Join(err, b.Release(ctx, r.Hold))
		}
		isQueued()
		select {
		case <-w.Ready:
		case <-time.After(testTimeout):
			return errors.New("not signalled")
		}
	}
}
