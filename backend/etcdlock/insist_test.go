package etcdlock

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/testserver"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

// What one server does not answer is asked of the next in time, and on a new connection.
func TestHedge(t *testing.T) {
	silence := errors.New("silence")
	for _, c := range []struct {
		name    string
		answers []error // of one question after the other
		fresh   error   // of each on a new connection
		want    error
		after   time.Duration
		asked   int32
	}{
		{"the first answers", []error{nil}, silence, nil, 0, 1},
		{"the first is silent", []error{silence, nil}, silence, nil, 3 * time.Second, 2},
		{"two are silent", []error{silence, silence, nil}, silence, nil, 6 * time.Second, 3},
		{"all connections are silent", []error{silence, silence}, nil, nil, 3 * time.Second, 2},
		{"all are silent", []error{silence, silence, silence}, silence, context.DeadlineExceeded, 9 * time.Second, 3},
		{"the first has no leader", []error{rpctypes.ErrNoLeader, nil}, silence, nil, 0, 2},
		{"none has", []error{rpctypes.ErrNoLeader, rpctypes.ErrNoLeader, rpctypes.ErrNoLeader}, rpctypes.ErrNoLeader, rpctypes.ErrNoLeader, 0, 3},
		{"the first is down, the next silent", []error{errors.New("refused"), silence, nil}, silence, nil, 3 * time.Second, 3},
		{"a fact", []error{rpctypes.ErrLeaseNotFound}, silence, rpctypes.ErrLeaseNotFound, 0, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 9*time.Second)
				defer cancel()
				var asked atomic.Int32
				start := time.Now()
				give := func(ctx context.Context, answer error) (int, error) {
					if answer == silence {
						<-ctx.Done()
						return 0, ctx.Err()
					}
					return 1, answer
				}
				_, err := hedge(ctx,
					func(ctx context.Context) (int, error) { return give(ctx, c.answers[asked.Add(1)-1]) },
					func(ctx context.Context) (int, error) { return give(ctx, c.fresh) })
				synctest.Wait() // for a question at the moment of the answer
				if !errors.Is(err, c.want) || time.Since(start) != c.after || asked.Load() != c.asked {
					t.Errorf("%v after %v and %d questions, want %v after %v and %d", err, time.Since(start), asked.Load(), c.want, c.after, c.asked)
				}
			})
		})
	}
}

// A client that can't reach one of three members, or reaches one that has lost the others,
// keeps what it holds.
func TestLongRenewalsGoOnWithoutOneMember(t *testing.T) {
	g := testserver.EtcdCluster(t, testserver.EtcdOptions{})
	ways := proxiesTo(t, g.Addrs())
	b := openThrough(t, ways, nil)
	r := request("", driver.Exclusive)
	r.TTL = 5 * time.Minute // outlives all renewals
	acquire(t, b, r)
	renewals := func(what string) {
		for range 4 {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			if err := b.Renew(ctx, []driver.Hold{r.Hold})[0]; err != nil {
				t.Errorf("%s: %v", what, err)
			}
			cancel()
		}
	}
	follower := g.Followers()[0]
	for i, s := range g.Members() {
		if s == follower {
			ways[i].Silence()
			renewals("a way is silent")
			ways[i].Pass()
		}
	}
	follower = g.Followers()[0] // there may have been an election
	g.Isolate(follower)
	eventually(t, "the member knows that it is alone", func() bool { return alone(t, follower) })
	renewals("a member is alone")
	g.Heal()
}

// alone reports whether a member of a cluster knows that it has no leader.
func alone(t *testing.T, s *testserver.EtcdServer) bool {
	status, err := newClient(t, s.Addr()).Status(t.Context(), s.Addr())
	return err == nil && status.Leader == 0
}
