package etcdlock

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/testserver"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

// A fixed hold ends by itself while others of its TTL are renewed. Its lease ends with its release.
func TestFixedHoldEndsByItself(t *testing.T) {
	t.Parallel()
	b, admin := shared(t), shared(t)
	for ttl := time.Second; ; ttl *= 4 {
		err := fixedHoldEnds(t, b, ttl)
		if err == nil {
			break
		}
		if ttl > time.Minute {
			t.Fatal(err)
		}
		t.Logf("a TTL of %v is too short for this machine: %v", ttl, err)
	}

	again := request("", driver.Exclusive)
	again.Fixed = true
	acquire(t, b, again)
	lease := storedKeys(t, admin, again.Name)[0].lease
	release(t, b, again)
	eventually(t, "the lease ends with the hold", func() bool {
		left, err := admin.client.TimeToLive(t.Context(), lease)
		return err == nil && left.TTL < 0
	})
}

// fixedHoldEnds waits until a fixed hold ends beside one of the same TTL that is renewed. It returns an
// error if the renewed one was lost.
func fixedHoldEnds(t *testing.T, b *Backend, ttl time.Duration) error {
	t.Helper()
	renewed, fixed := request("", driver.Exclusive), request("", driver.Exclusive)
	renewed.TTL, fixed.TTL, fixed.Fixed = ttl, ttl, true
	fixed, lost := withOnLost(fixed)
	for _, r := range []driver.Request{renewed, fixed} {
		if _, err := b.Acquire(t.Context(), r); err != nil {
			return err
		}
	}
	var err error
	eventually(t, "the fixed hold ends", func() bool {
		err = b.Renew(t.Context(), []driver.Hold{renewed.Hold})[0]
		return err != nil || len(storedKeys(t, b, fixed.Name)) == 0
	})
	if err == nil {
		awaitLost(t, lost)
	}
	return err
}

// Refused tries of fixed locks share a lease, which the first granted one gets. Otherwise each would
// grant and revoke one.
func TestRefusedFixedTriesShareALease(t *testing.T) {
	b, admin := shared(t), shared(t)
	r := request("", driver.Exclusive)
	acquire(t, b, r)
	var all []*lease
	next := func() driver.Request {
		n := request(r.Name, driver.Exclusive)
		n.Fixed = true
		return n
	}
	for range 3 {
		refused(t, b, next(), driver.ErrHeld)
		all = append(all, b.leases.spare)
	}
	if all[0] == nil || all[1] != all[0] || all[2] != all[0] {
		t.Errorf("leases of refused tries: %v", all)
	}
	release(t, b, r)
	granted, second := next(), request("", driver.Exclusive)
	second.Fixed = true
	if g := acquire(t, b, granted); g.TTL < granted.TTL {
		t.Errorf("granted for %v", g.TTL)
	}
	acquire(t, b, second)
	if one, two := storedKeys(t, admin, granted.Name)[0].lease, storedKeys(t, admin, second.Name)[0].lease; one != all[0].id || two == one {
		t.Errorf("holds have the leases %x and %x, the tries had %x", one, two, all[0].id)
	}
	// A lease that has ended is not reused.
	refused(t, b, next(), driver.ErrHeld)
	if _, err := admin.client.Revoke(t.Context(), b.leases.spare.id); err != nil {
		t.Fatal(err)
	}
	third := request("", driver.Exclusive)
	third.Fixed = true
	acquire(t, b, third)
	// Only one is kept.
	for _, ttl := range []time.Duration{20 * time.Second, 40 * time.Second} {
		n := next()
		n.TTL = ttl
		refused(t, b, n, driver.ErrHeld)
	}
	b.leases.mu.Lock()
	defer b.leases.mu.Unlock()
	if want := 1 + 3 + 1; len(b.leases.all) != want {
		t.Errorf("%d leases, want %d", len(b.leases.all), want)
	}
}

// Attempts keep their shared lease alive, so that a grant after a pause has the whole TTL.
func TestLeaseIsFreshWhenUsed(t *testing.T) {
	b := shared(t)
	first, next := request("", driver.Exclusive), request("", driver.Exclusive)
	acquire(t, b, first)
	l := b.owners.get(first.Owner).lease
	l.mu.Lock()
	l.reply.sent = l.reply.sent.Add(-l.reply.ttl * 6 / 10)
	l.mu.Unlock()
	if g := acquire(t, b, next); g.TTL < next.TTL {
		t.Errorf("granted for %v of %v", g.TTL, next.TTL)
	}
	if b.owners.get(next.Owner).lease != l {
		t.Error("another lease")
	}
}

// An unused lease ends, and the next lock has a new one.
func TestIdleLeaseEnds(t *testing.T) {
	t.Parallel()
	b := shared(t)
	r := request("", driver.Exclusive)
	r.TTL = 3 * time.Second
	acquire(t, b, r)
	l := b.owners.get(r.Owner).lease
	release(t, b, r)
	eventually(t, "the idle lease has ended", func() bool {
		left, err := b.client.TimeToLive(t.Context(), l.id)
		return err == nil && left.TTL < 0
	})
	acquire(t, b, request(r.Name, driver.Exclusive))
}

// Close ends the leases, and their holds, at once.
func TestCloseEndsTheSession(t *testing.T) {
	b, admin := shared(t), shared(t)
	r, fixed := request("", driver.Exclusive), request("", driver.Exclusive)
	fixed.Fixed = true
	acquire(t, b, r)
	acquire(t, b, fixed)
	w := queued(request(r.Name, driver.Exclusive))
	refused(t, b, w, driver.ErrHeld)
	b.Close()
	acquire(t, admin, request(r.Name, driver.Exclusive))
	acquire(t, admin, request(fixed.Name, driver.Exclusive))
}

// A request that one server doesn't answer is sent to the next in time, and over a new connection.
func TestHedge(t *testing.T) {
	silence := errors.New("silence")
	for _, c := range []struct {
		name    string
		answers []error // in order
		fresh   error   // of each on a new connection
		want    error
		after   time.Duration
		sent    int32
	}{
		{"the first answers", []error{nil}, silence, nil, 0, 1},
		{"the first is silent", []error{silence, nil}, silence, nil, 3 * time.Second, 2},
		{"two are silent", []error{silence, silence, nil}, silence, nil, 6 * time.Second, 3},
		{"all connections are silent", []error{silence, silence}, nil, nil, 3 * time.Second, 2},
		{"all are silent", []error{silence, silence, silence}, silence, context.DeadlineExceeded, 9 * time.Second, 3},
		{"the first has no leader", []error{rpctypes.ErrNoLeader, nil}, silence, nil, 0, 2},
		{"none has", []error{rpctypes.ErrNoLeader, rpctypes.ErrNoLeader, rpctypes.ErrNoLeader}, rpctypes.ErrNoLeader, rpctypes.ErrNoLeader, 0, 3},
		{"the first is down, the next silent", []error{errors.New("refused"), silence, nil}, silence, nil, 3 * time.Second, 3},
		{"a final error", []error{rpctypes.ErrLeaseNotFound}, silence, rpctypes.ErrLeaseNotFound, 0, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 9*time.Second)
				defer cancel()
				var sent atomic.Int32
				start := time.Now()
				give := func(ctx context.Context, answer error) (int, error) {
					if answer == silence {
						<-ctx.Done()
						return 0, ctx.Err()
					}
					return 1, answer
				}
				_, err := hedge(ctx,
					func(ctx context.Context) (int, error) { return give(ctx, c.answers[sent.Add(1)-1]) },
					func(ctx context.Context) (int, error) { return give(ctx, c.fresh) })
				synctest.Wait() // for a request sent at the moment of the answer
				if !errors.Is(err, c.want) || time.Since(start) != c.after || sent.Load() != c.sent {
					t.Errorf("%v after %v and %d requests, want %v after %v and %d", err, time.Since(start), sent.Load(), c.want, c.after, c.sent)
				}
			})
		})
	}
}

// A client keeps its holds if it can't reach one of three members, or reaches one without a leader.
func TestLongRenewalsGoOnWithoutOneMember(t *testing.T) {
	g := testserver.EtcdCluster(t, testserver.EtcdOptions{})
	proxies := proxiesTo(t, g.Addrs())
	b := openThrough(t, proxies, nil)
	r := request("", driver.Exclusive)
	r.TTL = 5 * time.Minute // outlives all renewals
	acquire(t, b, r)
	renewals := func(what string) {
		for range 4 {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			err := b.Renew(ctx, []driver.Hold{r.Hold})[0]
			// On a busy machine there may be one more election, of which all members say that it goes on.
			for ctx.Err() == nil && (errors.Is(err, errOldLeader) || errors.Is(err, rpctypes.ErrNoLeader)) {
				time.Sleep(50 * time.Millisecond)
				err = b.Renew(ctx, []driver.Hold{r.Hold})[0]
			}
			if err != nil {
				t.Errorf("%s: %v", what, err)
			}
			cancel()
		}
	}
	follower := g.Followers()[0]
	for i, s := range g.Members() {
		if s == follower {
			proxies[i].Silence()
			renewals("a way is silent")
			proxies[i].Pass()
		}
	}
	follower = g.Followers()[0] // there may have been an election
	g.Isolate(follower)
	eventually(t, "the member knows that it is alone", func() bool { return alone(t, follower) })
	g.Leader() // the others may be electing one
	renewals("a member is alone")
	g.Heal()
}

// alone reports whether a member knows that it has no leader.
func alone(t *testing.T, s *testserver.EtcdServer) bool {
	status, err := newClient(t, s.Addr()).Status(t.Context(), s.Addr())
	return err == nil && status.Leader == 0
}

// replacedLeader is a member that was the leader when it was paused. It answers keep-alives with its own
// term, since they need no other member, and transactions with the term of its successor.
type replacedLeader struct {
	pb.UnimplementedLeaseServer
	pb.UnimplementedKVServer
	term, knows atomic.Uint64 // the cluster's, the member's
	gone        atomic.Bool   // keep-alives find no lease
	kept        atomic.Int64
	leaderless  atomic.Int64           // transactions that a member without a leader would keep
	batched     atomic.Int64           // transactions that came in batches
	meanwhile   atomic.Pointer[func()] // before the next keep-alive is answered
}

func (s *replacedLeader) LeaseGrant(_ context.Context, r *pb.LeaseGrantRequest) (*pb.LeaseGrantResponse, error) {
	return &pb.LeaseGrantResponse{Header: &pb.ResponseHeader{RaftTerm: s.term.Load()}, ID: 7, TTL: r.TTL}, nil
}

func (s *replacedLeader) LeaseRevoke(context.Context, *pb.LeaseRevokeRequest) (*pb.LeaseRevokeResponse, error) {
	return &pb.LeaseRevokeResponse{}, nil
}

func (s *replacedLeader) LeaseKeepAlive(stream pb.Lease_LeaseKeepAliveServer) error {
	for {
		r, err := stream.Recv()
		if err != nil {
			return nil
		}
		s.kept.Add(1)
		if f := s.meanwhile.Swap(nil); f != nil {
			(*f)()
		}
		resp := &pb.LeaseKeepAliveResponse{Header: &pb.ResponseHeader{RaftTerm: s.knows.Load()}, ID: r.ID, TTL: 30}
		if s.gone.Load() {
			resp.TTL = 0
		}
		stream.Send(resp)
	}
}

func (s *replacedLeader) Txn(ctx context.Context, r *pb.TxnRequest) (*pb.TxnResponse, error) {
	if md, _ := metadata.FromIncomingContext(ctx); len(md.Get(rpctypes.MetadataRequireLeaderKey)) == 0 {
		s.leaderless.Add(1)
	}
	resp := &pb.TxnResponse{Header: &pb.ResponseHeader{RaftTerm: s.term.Load(), Revision: 9}, Succeeded: true}
	for _, op := range r.Success {
		if op.GetRequestTxn() != nil { // of a batch
			s.batched.Add(1)
			nested := &pb.ResponseOp_ResponseTxn{ResponseTxn: &pb.TxnResponse{Succeeded: true}}
			resp.Responses = append(resp.Responses, &pb.ResponseOp{Response: nested})
		}
	}
	return resp, nil
}

func serveReplacedLeader(t *testing.T) (*replacedLeader, *Backend) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s, srv := &replacedLeader{}, grpc.NewServer()
	s.term.Store(5)
	s.knows.Store(5)
	pb.RegisterLeaseServer(srv, s)
	pb.RegisterKVServer(srv, s)
	go srv.Serve(l)
	t.Cleanup(srv.Stop)
	return s, openAt(t, l.Addr().String(), nil)
}

// A keep-alive answered by a replaced leader counts for nothing: its successor ends leases.
func TestKeepAliveByAReplacedLeader(t *testing.T) {
	s, b := serveReplacedLeader(t)
	r := request("", driver.Exclusive)
	acquire(t, b, r)
	if err := b.Renew(t.Context(), []driver.Hold{r.Hold})[0]; err != nil {
		t.Fatalf("renewed by the leader: %v", err)
	}

	s.term.Store(6)
	if err := b.Renew(t.Context(), []driver.Hold{r.Hold})[0]; !errors.Is(err, errOldLeader) || errors.Is(err, driver.ErrLost) {
		t.Errorf("renewed by a replaced leader: %v, want an unknown outcome", err)
	}
	if _, err := b.Acquire(t.Context(), request("", driver.Exclusive)); !errors.Is(err, errOldLeader) || driver.Final(err) {
		t.Errorf("granted on a lease kept alive by a replaced leader: %v, want an unknown outcome", err)
	}

	s.knows.Store(6)
	if err := b.Renew(t.Context(), []driver.Hold{r.Hold})[0]; err != nil {
		t.Errorf("renewed by its successor: %v", err)
	}
}

// A replaced leader doesn't know the leases that its successor has granted: that it finds none is no fact.
func TestLeaseUnknownToAReplacedLeader(t *testing.T) {
	s, b := serveReplacedLeader(t)
	s.term.Store(6)
	r, lost := withOnLost(request("", driver.Exclusive))
	acquire(t, b, r)
	s.gone.Store(true)
	bounded, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	for _, ctx := range []context.Context{t.Context(), bounded} {
		if err := b.Renew(ctx, []driver.Hold{r.Hold})[0]; !errors.Is(err, errOldLeader) || errors.Is(err, driver.ErrLost) {
			t.Errorf("renewed by a replaced leader: %v, want an unknown outcome", err)
		}
	}
	if len(lost) > 0 {
		t.Error("the holder was notified of a loss")
	}

	s.knows.Store(6)
	if err := b.Renew(t.Context(), []driver.Hold{r.Hold})[0]; !errors.Is(err, driver.ErrLost) {
		t.Errorf("renewed by its successor: %v, want ErrLost", err)
	}
	awaitLost(t, lost)
}

// The first grant after a change of leaders keeps the lease alive once more.
func TestGrantAfterAChangeOfLeaders(t *testing.T) {
	s, b := serveReplacedLeader(t)
	acquire(t, b, request("", driver.Exclusive))
	s.term.Store(6)
	s.knows.Store(6)
	start, kept := time.Now(), s.kept.Load()
	g := acquire(t, b, request("", driver.Exclusive))
	if s.kept.Load() == kept {
		t.Error("no keep-alive under the new leader")
	}
	if least := 30*time.Second - time.Since(start); g.TTL < least {
		t.Errorf("TTL %v, want at least %v", g.TTL, least)
	}
}

// A grant on a lease that was found to have ended meanwhile is repeated: its holder would not be
// notified of the loss.
func TestGrantOnALeaseThatEndsMeanwhile(t *testing.T) {
	s, b := serveReplacedLeader(t)
	first := request("", driver.Exclusive)
	acquire(t, b, first)
	l := b.owners.get(first.Owner).lease
	s.term.Store(6)
	s.knows.Store(6)
	ends := func() { b.leases.markEnded(l) }
	s.meanwhile.Store(&ends)
	r := request("", driver.Exclusive)
	acquire(t, b, r)
	if c := b.owners.get(r.Owner); c == nil || c.lease == l {
		t.Errorf("granted on a lease that has ended: %+v", c)
	}
}
