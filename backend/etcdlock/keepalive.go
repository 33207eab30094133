package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
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

// sendKeepAlives makes one attempt to keep leases alive. The client's own method repeats itself, without a pause, until
// a server answers. A stream of one message is a unary call, and cheaper.
func sendKeepAlives(ctx context.Context, conn *grpc.ClientConn, all []clientv3.LeaseID) ([]*keepAliveReply, error) {
	if len(all) > 1 {
		return streamKeepAlives(ctx, conn, all)
	}
	sent, resp := time.Now(), &pb.LeaseKeepAliveResponse{}
	if err := conn.Invoke(ctx, leaseKeepAlive, &pb.LeaseKeepAliveRequest{ID: int64(all[0])}, resp); err != nil {
		return nil, clientv3.ContextError(ctx, err)
	}
	return []*keepAliveReply{replyOf(resp, sent)}, nil
}

// streamKeepAlives sends all keep-alives before it reads the answers, which come in the same order.
func streamKeepAlives(ctx context.Context, conn *grpc.ClientConn, all []clientv3.LeaseID) ([]*keepAliveReply, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := pb.NewLeaseClient(conn).LeaseKeepAlive(ctx)
	sent := time.Now()
	for i := 0; i < len(all) && err == nil; i++ {
		err = stream.Send(&pb.LeaseKeepAliveRequest{ID: int64(all[i])})
	}
	replies := make([]*keepAliveReply, len(all))
	for i := 0; i < len(all) && err == nil; i++ {
		var resp *pb.LeaseKeepAliveResponse
		if resp, err = stream.Recv(); err == nil {
			replies[i] = replyOf(resp, sent)
			if resp.ID != int64(all[i]) {
				err = fmt.Errorf("an answer about lease %x to a keep-alive of lease %x", resp.ID, all[i])
			}
		}
	}
	return replies, clientv3.ContextError(ctx, err)
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
// over a new connection. The request must be idempotent.
func hedge[T any](ctx context.Context, own, fresh func(context.Context) (T, error)) (T, error) {
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
	for round := 0; ; {
		if round < hedgeRounds {
			send(own)
			if round > 0 {
				send(fresh)
			}
			round++
		}
		select {
		case last := <-replies:
			waiting--
			final := last.err == nil || !outcomeUnknown(last.err) && !errors.Is(last.err, rpctypes.ErrNoLeader)
			if final || round == hedgeRounds && waiting == 0 || ctx.Err() != nil {
				return last.resp, last.err
			}
		case <-tick.C:
		}
	}
}

// onNewConn returns a function that sends a request over a new connection to one of the client's
// servers.
func onNewConn[T any](client *clientv3.Client, send func(context.Context, *grpc.ClientConn) (T, error)) func(context.Context) (T, error) {
	return func(ctx context.Context) (resp T, err error) {
		servers := client.Endpoints()
		conn, err := client.Dial(servers[rand.IntN(len(servers))])
		if err != nil {
			return resp, err
		}
		defer conn.Close()
		return send(ctx, conn)
	}
}
