package etcdlock

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/expect"
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
		var turn func(i int, b *Backend, isQueued func())
		turn = func(i int, b *Backend, isQueued func()) {
			expect.OK(t, takeTurn(t.Context(), b, request(name, driver.Exclusive), isQueued, func() {
				if turns[i]++; granted.Add(1) >= total {
					return
				}
				// The next place is taken before the release, so that turns do not depend on the machine.
				placed := make(chan struct{})
				done.Go(func() { turn(i, b, func() { close(placed) }) })
				<-placed
			}))
		}
		for i := range sessions {
			b := countingBackend(t, &sent)
			done.Go(func() { turn(i, b, ready.Done) })
		}
		ready.Wait()
		release(t, holder, first)
		done.Wait()
		n := granted.Load()
		t.Logf("%d sessions: %.1f messages for a turn; turns %v", sessions, float64(sent.Load())/float64(n), turns)
		if most := n * 12; sent.Load() > most { // five, the opening, and four polls: more on a busy machine
			t.Errorf("%d sessions: %d messages for %d turns, want at most %d", sessions, sent.Load(), n, most)
		}
		for i, got := range turns {
			if got < 6 || got > 24 {
				t.Errorf("session %d has had %d of %d turns", i, got, n)
			}
		}
	}
}

// Readers, writers and permits whose attempts wait for nothing but a signal all have their turns.
func TestNoSignalIsLost(t *testing.T) {
	const turns = 200 // of all
	for _, each := range [][]driver.Mode{
		{driver.Write, driver.Write, driver.Read, driver.Read, driver.Read, driver.Read, driver.Read, driver.Read},
		{driver.Counted, driver.Counted, driver.Counted, driver.Counted, driver.Counted, driver.Counted},
		slices.Repeat([]driver.Mode{driver.Exclusive}, crowd+8),
		slices.Repeat([]driver.Mode{driver.Counted}, crowd+8),
		slices.Repeat([]driver.Mode{driver.Write, driver.Read}, crowd/2+4),
	} {
		name := request("", driver.Exclusive).Name
		var done sync.WaitGroup
		for _, mode := range each {
			b := shared(t)
			done.Go(func() {
				for n := range turns / len(each) {
					r := request(name, mode)
					if n%2 > 0 { // a place comes before its watch where nobody waited lately
						_, _ = b.Acquire(t.Context(), queued(r))
					}
					expect.OK(t, takeTurn(t.Context(), b, r, func() {}, func() {}), mode)
				}
			})
		}
		done.Wait()
	}
}

// A writer is signalled when all readers ahead are gone, in whichever order, and a reader when no writer is ahead. Each then
// has the lock by one transaction.
func TestSignalMeansGranted(t *testing.T) {
	var sent atomic.Int64 // without keep-alives, which a slow machine needs more of
	count := func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		if method == "/etcdserverpb.KV/Txn" {
			sent.Add(1)
		}
		return invoke(ctx, method, req, reply, cc, opts...)
	}
	holder, b := shared(t), backendOf(t, newClientWith(t, testserver.SharedEtcd(t).Addr(), count), nil)
	first := request("", driver.Read)
	last := request(first.Name, driver.Read)
	acquire(t, holder, first)
	acquire(t, holder, last)
	waiting := func(r driver.Request) (*releaseWatch, driver.Watch) {
		w := armWatch(t, b, r)
		t.Cleanup(w.Close)
		refused(t, b, r, driver.ErrHeld)
		b.owners.mu.Lock()
		defer b.owners.mu.Unlock()
		return b.owners.waiting[r.Owner].(*releaseWatch), w
	}
	atOnce := func(r driver.Request, w driver.Watch) {
		awaitSignal(t, w)
		before := sent.Load()
		acquire(t, b, r)
		expect.Equal(t, sent.Load()-before, 1, r.Mode, "transactions")
	}
	writer := queued(request(first.Name, driver.Write))
	state, w := waiting(writer)
	release(t, holder, last)
	eventually(t, "the event has arrived", func() bool {
		state.mu.Lock()
		defer state.mu.Unlock()
		return len(state.blockers) == 1
	})
	if len(w.Ready) > 0 {
		t.Error("signalled though a reader is ahead")
	}
	release(t, holder, first)
	atOnce(writer, w)

	before, reader := queued(request(first.Name, driver.Read)), queued(request(first.Name, driver.Read))
	refused(t, holder, before, driver.ErrHeld)
	_, w = waiting(reader)
	release(t, b, writer)
	atOnce(reader, w)
	acquire(t, holder, before)
}

// A waiter far back, whose attempts do not read the queue, is signalled though others ahead ended before its watch was live.
func TestFarWaiterIsSignalled(t *testing.T) {
	holder, b := shared(t), shared(t)
	for _, mode := range []driver.Mode{driver.Exclusive, driver.Counted} {
		first := request("", mode)
		first.Limit, first.TTL = 2, 2*testTimeout // no end of a key helps
		ahead := []driver.Request{first}
		acquire(t, holder, first)
		for range shortQueue + 2 {
			r := first
			r.Owner = driver.NewOwner()
			ahead = append(ahead, queued(r))
			_, err := holder.Acquire(t.Context(), queued(r))
			expect.Equal(t, err == nil || errors.Is(err, driver.ErrHeld), true, err)
		}
		r := first
		r.Owner = driver.NewOwner()
		r = queued(r)
		refused(t, b, r, driver.ErrHeld)
		release(t, holder, ahead[3])
		w := armWatch(t, b, r)
		refused(t, b, r, driver.ErrHeld)
		for i := range ahead {
			if i != 3 {
				release(t, holder, ahead[i])
			}
		}
		awaitSignal(t, w)
		acquire(t, b, r)
		w.Close()
		release(t, b, r)
	}
}

// A place that another connection has taken for an Owner is behind other keys than the one before, which the Owner had lost.
func TestPlaceOfAnotherConnection(t *testing.T) {
	b, other := shared(t), shared(t)
	first := request("", driver.Write)
	second, reader := request(first.Name, driver.Write), queued(request(first.Name, driver.Read))
	acquire(t, other, first)
	refused(t, b, reader, driver.ErrHeld)
	release(t, other, reader)
	release(t, other, first)
	acquire(t, other, second)
	refused(t, other, reader, driver.ErrHeld)
	refused(t, b, reader, driver.ErrHeld)
	release(t, other, second)
	acquire(t, b, reader)
}

// takeTurn acquires and releases as the core does for a name that was contended lately. It calls
// isQueued once, when it has a place, and holds while it has the lock.
func takeTurn(ctx context.Context, b *Backend, r driver.Request, isQueued, holds func()) error {
	r, isQueued = queued(r), sync.OnceFunc(isQueued)
	defer isQueued()
	w, err := b.Watch(ctx, r)
	if err != nil {
		return err
	}
	defer w.Close()
	for {
		_, err := b.Acquire(ctx, r)
		if err == nil {
			holds()
		}
		if !errors.Is(err, driver.ErrHeld) {
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
