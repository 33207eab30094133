package etcdlock

import (
	"context"
	"math/rand/v2"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
)

// hedgeRounds is into how many parts insist divides the time that it has.
const hedgeRounds = 3

// hedge asks once, and once more whenever a part of the time has passed without an answer,
// or one came that says nothing. The client takes its servers in turn: where one of them
// does not answer, the next may. All its connections may be silent though the servers are
// well, as when a firewall has forgotten them, and gRPC takes 13 seconds to notice: so it
// also asks on a new connection. What is asked must be as good if it is asked twice.
func hedge[T any](ctx context.Context, own, fresh func(context.Context) (T, error)) (T, error) {
	end, bounded := ctx.Deadline()
	if !bounded {
		return own(ctx)
	}
	type answer struct {
		of  T
		err error
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	answers := make(chan answer, 2*hedgeRounds)
	waiting := 0
	ask := func(f func(context.Context) (T, error)) {
		waiting++
		go func() {
			of, err := f(ctx)
			answers <- answer{of, err}
		}()
	}
	tick := time.NewTicker(max(time.Until(end)/hedgeRounds, time.Millisecond))
	defer tick.Stop()
	var last answer
	for asked := 0; ; {
		if asked < hedgeRounds {
			ask(own)
			if asked > 0 {
				ask(fresh)
			}
			asked++
		}
		select {
		case last = <-answers:
			waiting--
			if last.err == nil || !outcomeUnknown(last.err) && !noLeader(last.err) || asked == hedgeRounds && waiting == 0 || ctx.Err() != nil {
				return last.of, last.err
			}
		case <-tick.C:
		}
	}
}

// onNewConn asks on a new connection, to one of the client's servers.
func onNewConn[T any](client *clientv3.Client, ask func(context.Context, *grpc.ClientConn) (T, error)) func(context.Context) (T, error) {
	return func(ctx context.Context) (of T, err error) {
		servers := client.Endpoints()
		conn, err := client.Dial(servers[rand.IntN(len(servers))])
		if err != nil {
			return of, err
		}
		defer conn.Close()
		return ask(ctx, conn)
	}
}
