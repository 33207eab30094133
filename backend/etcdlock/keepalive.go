package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
)

// leaseKeepAlive is the method of keep-alives.
const leaseKeepAlive = "/etcdserverpb.Lease/LeaseKeepAlive"

// keepAliveReply is an answered keep-alive, or the grant.
type keepAliveReply struct {
	sent time.Time // the request
	ttl  time.Duration
	term uint64 // the leader's
}

// keepAlives is a call that keeps leases alive, by one or several attempts that may overlap.
type keepAlives struct {
	mu       sync.Mutex
	ids      []clientv3.LeaseID
	answered []*keepAliveReply // nil: not yet
}

// send makes one attempt to keep the leases alive that have no answer yet. The client's own method repeats itself, without a
// pause, until a server answers. A stream of one message is a unary call, and cheaper. beat is called for each answer.
func (k *keepAlives) send(ctx context.Context, conn *grpc.ClientConn, beat func()) (struct{}, error) {
	k.mu.Lock()
	var open []int
	for i := range k.ids {
		if k.answered[i] == nil {
			open = append(open, i)
		}
	}
	k.mu.Unlock()
	switch len(open) {
	case 0:
		return struct{}{}, nil
	case 1:
		sent, resp := time.Now(), &pb.LeaseKeepAliveResponse{}
		err := conn.Invoke(ctx, leaseKeepAlive, &pb.LeaseKeepAliveRequest{ID: int64(k.ids[open[0]])}, resp)
		if err == nil {
			beat()
			k.answer(open[0], resp, sent)
		}
		return struct{}{}, clientv3.ContextError(ctx, err)
	}
	return struct{}{}, clientv3.ContextError(ctx, k.stream(ctx, conn, open, beat))
}

// stream sends keep-alives before it reads the answers, which come in the same order. Each answer counts at once: a server
// that is too busy to answer all in time must not be asked for all of them again.
func (k *keepAlives) stream(ctx context.Context, conn *grpc.ClientConn, open []int, beat func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := pb.NewLeaseClient(conn).LeaseKeepAlive(ctx)
	sent := time.Now()
	for n := 0; n < len(open) && err == nil; n++ {
		err = stream.Send(&pb.LeaseKeepAliveRequest{ID: int64(k.ids[open[n]])})
	}
	for n := 0; n < len(open) && err == nil; n++ {
		resp, err := stream.Recv()
		if err != nil {
			return err
		}
		if id := k.ids[open[n]]; resp.ID != int64(id) {
			return fmt.Errorf("an answer about lease %x to a keep-alive of lease %x", resp.ID, id)
		}
		beat()
		k.answer(open[n], resp, sent)
	}
	return err
}

func (k *keepAlives) answer(i int, resp *pb.LeaseKeepAliveResponse, sent time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if last := k.answered[i]; last == nil || last.sent.Before(sent) {
		k.answered[i] = replyOf(resp, sent)
	}
}

// take returns the answers so far.
func (k *keepAlives) take() []*keepAliveReply {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.answered)
}

func replyOf(resp *pb.LeaseKeepAliveResponse, sent time.Time) *keepAliveReply {
	return &keepAliveReply{sent, time.Duration(resp.TTL) * time.Second, resp.Header.GetRaftTerm()}
}

// hedgeRounds is the number of parts into which hedge divides its time.
const hedgeRounds = 3

// hedge sends a request, and sends it again whenever a part of the time has passed without an
// answer, or the answer leaves the outcome unknown. The client takes its servers in turn, so the
// next one may answer. All its connections may be silent though the servers are well, as when a
// firewall has forgotten them, and gRPC takes 13 seconds to notice: so repetitions also go
// over a new connection: the first one if no answer came over the client's own ones meanwhile, since busy servers get busier by new
// connections; the last one in any case, since only some of the own ones may be silent. The request must be idempotent.
func hedge[T any](ctx context.Context, pulse *pulse, own, fresh func(context.Context) (T, error)) (T, error) {
	end, bounded := ctx.Deadline()
	if !bounded {
		return own(ctx)
	}
	type reply struct {
		resp T
		err  error
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	replies := make(chan reply, 2*hedgeRounds)
	waiting := 0
	send := func(f func(context.Context) (T, error)) {
		waiting++
		go func() {
			resp, err := f(ctx)
			replies <- reply{resp, err}
		}()
	}
	tick := time.NewTicker(max(time.Until(end)/hedgeRounds, time.Millisecond))
	defer tick.Stop()
	var last time.Time
	for round := 0; ; {
		if round < hedgeRounds {
			send(own)
			if round == hedgeRounds-1 || round > 0 && pulse.silentSince(last) {
				send(fresh)
			}
			round, last = round+1, time.Now()
		}
		select {
		case r := <-replies:
			waiting--
			final := r.err == nil || !outcomeUnknown(r.err) && !errors.Is(r.err, rpctypes.ErrNoLeader)
			if final || round == hedgeRounds && waiting == 0 || ctx.Err() != nil {
				return r.resp, r.err
			}
		case <-tick.C:
		}
	}
}

// pulse is when a server has last answered over the client's own connections.
type pulse struct {
	last atomic.Pointer[time.Time]
}

func (p *pulse) beat() {
	now := time.Now()
	p.last.Store(&now)
}

func (p *pulse) silentSince(t time.Time) bool {
	last := p.last.Load()
	return last == nil || last.Before(t)
}

// onNewConn returns a function that sends a request over a new connection to one of the client's
// servers.
func onNewConn[T any](s *leases, send func(context.Context, *grpc.ClientConn) (T, error)) func(context.Context) (T, error) {
	return func(ctx context.Context) (resp T, err error) {
		conn, done, err := s.fresh.use(func() (*grpc.ClientConn, error) {
			servers := s.client.Endpoints()
			return s.client.Dial(servers[rand.IntN(len(servers))])
		})
		if err != nil {
			return resp, err
		}
		defer done()
		return send(ctx, conn)
	}
}

// freshConns has the new connection that calls share which find the client's own ones silent: thousands of holds have hundreds of
// such calls at a time.
type freshConns struct {
	mu   sync.Mutex
	last *freshConn
}

type freshConn struct {
	*grpc.ClientConn
	made  time.Time
	users int
}

// freshLife is for how long a connection counts as new. Its server may be silent too.
const freshLife = time.Second

// use returns the last connection if it is new enough and in use, or dials. The last user closes it by done.
func (f *freshConns) use(dial func() (*grpc.ClientConn, error)) (conn *grpc.ClientConn, done func(), err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.last
	if c == nil || c.users == 0 || time.Since(c.made) > freshLife {
		conn, err := dial()
		if err != nil {
			return nil, nil, err
		}
		c = &freshConn{ClientConn: conn, made: time.Now()}
		f.last = c
	}
	c.users++
	return c.ClientConn, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if c.users--; c.users == 0 {
			c.Close()
		}
	}, nil
}
