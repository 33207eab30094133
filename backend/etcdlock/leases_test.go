package etcdlock

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

// leaseOf returns the lease of an Owner's key.
func leaseOf(b *Backend, r driver.Request) *lease { return b.owners.get(r.Owner).lease }

// age makes a connection believe that the last keep-alive was sent so much earlier.
func (l *lease) age(by time.Duration) {
	k := *l.reply.Load()
	k.sent = k.sent.Add(-by)
	l.reply.Store(&k)
}

// Each hold and each place has a lease of its own, which the next one gets after an answered release or refusal.
func TestLeasesAreUsedAgain(t *testing.T) {
	t.Parallel()
	b := shared(t)
	first, second := request("", driver.Exclusive), request("", driver.Exclusive)
	acquire(t, b, first)
	acquire(t, b, second)
	l := leaseOf(b, first)
	if l == leaseOf(b, second) {
		t.Fatal("two holds share a lease")
	}
	release(t, b, first)
	refused(t, b, request(second.Name, driver.Exclusive), driver.ErrHeld)
	waits := queued(request(second.Name, driver.Exclusive))
	refused(t, b, waits, driver.ErrHeld)
	expect.Equal(t, leaseOf(b, waits), l, "a place has got another lease than the hold and the try before it had")
	longer := request("", driver.Exclusive)
	longer.TTL *= 2
	acquire(t, b, longer)
	if leaseOf(b, longer).ttl() <= l.ttl() {
		t.Error("a hold has got a lease that is too short")
	}
}

// A grant is good for its TTL, also if the lease was idle for a while, and takes one transaction.
func TestIdleLeaseIsProlonged(t *testing.T) {
	t.Parallel()
	var transactions atomic.Int32
	b := backendOf(t, newClientWith(t, testserver.SharedEtcd(t).Addr(), func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		if method != leaseKeepAlive {
			transactions.Add(1)
		}
		return invoke(ctx, method, req, reply, cc, opts...)
	}), nil)
	first := request("", driver.Exclusive)
	acquire(t, b, first)
	l := leaseOf(b, first)
	release(t, b, first)
	for _, age := range []time.Duration{0, spareTTL + time.Millisecond, l.ttl() - time.Second} {
		l.age(age)
		next, start := request("", driver.Exclusive), time.Now()
		transactions.Store(0)
		acquire(t, b, next)
		if leaseOf(b, next) != l || l.expiry().Before(start.Add(next.TTL)) {
			t.Errorf("after %v: the lease ends in %v, want %v", age, l.expiry().Sub(start), next.TTL)
		}
		release(t, b, next)
		if n := transactions.Load(); n != 2 {
			t.Errorf("after %v: %d requests besides keep-alives, want two", age, n)
		}
	}
}

// A lease with a call that has no answer is revoked, and is never used again.
func TestLeaseOfAnUnansweredCall(t *testing.T) {
	t.Parallel()
	admin := shared(t)
	for name, c := range map[string]struct {
		fates []txnFate
		call  func(b *Backend, r driver.Request) error
	}{
		"an attempt": {[]txnFate{heldBack}, func(b *Backend, r driver.Request) error {
			_, err := b.Acquire(t.Context(), r)
			return err
		}},
		"an executed attempt": {[]txnFate{muted}, func(b *Backend, r driver.Request) error {
			_, err := b.Acquire(t.Context(), r)
			return err
		}},
		"a release": {[]txnFate{passed, heldBack}, func(b *Backend, r driver.Request) error {
			acquire(t, b, r)
			return b.Release(t.Context(), r.Hold)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			b := shared(t)
			kv := delayCalls(b)
			kv.next(c.fates...)
			r := request("", driver.Exclusive)
			must.Be(t, c.call(b, r), context.DeadlineExceeded)
			l := leaseOf(b, r)
			if err := b.Release(t.Context(), r.Hold); err != nil && !errors.Is(err, driver.ErrLost) {
				t.Fatal(err)
			}
			eventually(t, "the lease is revoked", func() bool {
				left, err := admin.client.TimeToLive(t.Context(), l.id)
				return err == nil && left.TTL < 0
			})
			next := request(r.Name, driver.Exclusive)
			acquire(t, b, next)
			if leaseOf(b, next) == l {
				t.Error("the lease is used again")
			}
			for _, op := range kv.held {
				kv.KV.Do(t.Context(), op) // its lease, or its key, is gone
			}
			if q := storedKeys(t, admin, r.Name); len(q) != 1 || q[0].owner != next.Owner {
				t.Errorf("after the late call: %+v", q)
			}
		})
	}
}

// A revocation that is late does not hit what the Owner was granted meanwhile: an attempt without an answer is executed
// after the next one has looked for its key.
func TestLateRevocation(t *testing.T) {
	t.Parallel()
	for name, by := range map[string]func(own, other *Backend) *Backend{
		"own connection":     func(own, _ *Backend) *Backend { return own },
		"another connection": func(_, other *Backend) *Backend { return other },
	} {
		t.Run(name, func(t *testing.T) {
			var late atomic.Bool
			other := shared(t)
			b := backendOf(t, newClientWith(t, testserver.SharedEtcd(t).Addr(), func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
				if method == "/etcdserverpb.Lease/LeaseRevoke" && late.Load() {
					return context.DeadlineExceeded
				}
				return invoke(ctx, method, req, reply, cc, opts...)
			}), nil)
			kv := delayCalls(b)
			kv.next(heldBack)
			r := request("", driver.Exclusive)
			refused(t, b, r, context.DeadlineExceeded)
			lease := leaseOf(b, r).id
			late.Store(true)
			refused(t, b, r, context.DeadlineExceeded)
			late.Store(false)
			kv.deliver(t)
			if k := onlyKey(t, other, r.Name); k.lease != lease {
				t.Fatalf("the first attempt is not executed: %+v", k)
			}
			next := by(b, other)
			acquire(t, next, r)
			other.client.Revoke(t.Context(), lease)
			renew(t, next, r)
			release(t, next, r)
		})
	}
}

// idleLease returns a lease that no server has, with another TTL than that of request.
func idleLease() *lease {
	l := newLease(clientv3.LeaseID(rand.Int64()), keepAliveReply{time.Now(), time.Minute, 0})
	l.own = true
	return l
}

// What nobody uses is revoked: too many leases at once, those that were idle for long, and all of them by Close. Close
// leaves those of holds.
func TestIdleLeasesAreRevoked(t *testing.T) {
	t.Parallel()
	b, admin := shared(t), shared(t)
	lives := func(l *lease) bool {
		left := must.Get(admin.client.TimeToLive(t.Context(), l.id))(t)
		return left.TTL > 0
	}
	var all []*lease
	for range 3 {
		r := request("", driver.Exclusive)
		acquire(t, b, r)
		all = append(all, leaseOf(b, r))
		defer b.Release(t.Context(), r.Hold)
	}
	unused := func() *lease {
		l := must.Get(b.leases.take(t.Context(), time.Minute))(t)
		return l
	}
	one, two, three := unused(), unused(), unused()
	b.leases.put(one)
	b.leases.mu.Lock()
	one.since = one.since.Add(-idleLife)
	b.leases.mu.Unlock()
	b.leases.put(two)
	b.leases.trim()
	eventually(t, "the lease that was idle for long is revoked", func() bool { return !lives(one) })
	b.leases.mu.Lock()
	idle := b.leases.idle
	b.leases.idle = nil
	b.leases.mu.Unlock()
	b.leases.put(three)
	for range maxIdle {
		b.leases.put(idleLease())
	}
	eventually(t, "the lease that is too many is revoked", func() bool { return !lives(three) })
	b.leases.mu.Lock()
	b.leases.idle = idle
	b.leases.mu.Unlock()
	if !lives(two) {
		t.Error("an idle lease is revoked")
	}
	b.Close()
	if lives(two) {
		t.Error("Close has left an idle lease")
	}
	for _, l := range all {
		if !lives(l) {
			t.Error("Close has ended a hold")
		}
	}
}

// A request that one server doesn't answer is sent to the next in time, and over a new connection.
func TestHedge(t *testing.T) {
	silence := errors.New("silence")
	for _, c := range []struct {
		name    string
		answers []error // in order
		beats   bool    // others are answered
		fresh   error   // of each on a new connection
		want    error
		after   time.Duration
		sent    int32
	}{
		{"the first answers", []error{nil}, false, silence, nil, 0, 1},
		{"the first is silent", []error{silence, nil}, false, silence, nil, 3 * time.Second, 2},
		{"two are silent", []error{silence, silence, nil}, false, silence, nil, 6 * time.Second, 3},
		{"all connections are silent", []error{silence, silence}, false, nil, nil, 3 * time.Second, 2},
		{"all but those of others are silent", []error{silence, silence, silence}, true, nil, nil, 6 * time.Second, 3},
		{"all are silent", []error{silence, silence, silence}, false, silence, context.DeadlineExceeded, 9 * time.Second, 3},
		{"the first has no leader", []error{rpctypes.ErrNoLeader, nil}, false, silence, nil, 0, 2},
		{"none has", []error{rpctypes.ErrNoLeader, rpctypes.ErrNoLeader, rpctypes.ErrNoLeader}, false, rpctypes.ErrNoLeader, rpctypes.ErrNoLeader, 0, 3},
		{"the first is down, the next silent", []error{errors.New("refused"), silence, nil}, false, silence, nil, 3 * time.Second, 3},
		{"a final error", []error{rpctypes.ErrLeaseNotFound}, false, silence, rpctypes.ErrLeaseNotFound, 0, 1},
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
				var p pulse
				if c.beats {
					go func() {
						tick := time.NewTicker(time.Second)
						defer tick.Stop()
						for ctx.Err() == nil {
							p.beat()
							select {
							case <-tick.C:
							case <-ctx.Done():
							}
						}
					}()
				}
				_, err := hedge(ctx, &p,
					func(ctx context.Context) (int, error) { return give(ctx, c.answers[sent.Add(1)-1]) },
					func(ctx context.Context) (int, error) { return give(ctx, c.fresh) })
				synctest.Wait() // for a request sent at the moment of the answer
				cancel()
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
	r.TTL = 30 * time.Minute // outlives all renewals
	acquire(t, b, r)
	renewals := func(what string) {
		for range 4 {
			// On a busy machine there may be one more election, and answers take their time.
			eventually(t, what+", and the hold is renewed", func() bool {
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
				defer cancel()
				err := b.Renew(ctx, []driver.Hold{r.Hold})[0]
				if errors.Is(err, driver.ErrLost) {
					t.Fatal(what, err)
				}
				return err == nil
			})
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
	key         atomic.Pointer[pb.PutRequest]
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
		resp := &pb.LeaseKeepAliveResponse{Header: &pb.ResponseHeader{RaftTerm: s.knows.Load()}, ID: r.ID, TTL: int64(holdTTL / time.Second)}
		if s.gone.Load() {
			resp.TTL = 0
		}
		stream.Send(resp)
	}
}

// LeaseTimeToLive returns less than its successor would.
func (s *replacedLeader) LeaseTimeToLive(_ context.Context, r *pb.LeaseTimeToLiveRequest) (*pb.LeaseTimeToLiveResponse, error) {
	return &pb.LeaseTimeToLiveResponse{Header: &pb.ResponseHeader{RaftTerm: s.knows.Load()}, ID: r.ID, TTL: 1, GrantedTTL: 3600}, nil
}

func (s *replacedLeader) Txn(ctx context.Context, r *pb.TxnRequest) (*pb.TxnResponse, error) {
	if md, _ := metadata.FromIncomingContext(ctx); len(md.Get(rpctypes.MetadataRequireLeaderKey)) == 0 {
		s.leaderless.Add(1)
	}
	resp := &pb.TxnResponse{Header: s.header(), Succeeded: true}
	for _, op := range r.Success {
		done := &pb.ResponseOp{}
		switch {
		case op.GetRequestTxn() != nil: // of a batch
			s.batched.Add(1)
			done.Response = &pb.ResponseOp_ResponseTxn{ResponseTxn: &pb.TxnResponse{Succeeded: true}}
		case op.GetRequestPut() != nil:
			s.key.Store(op.GetRequestPut())
		case op.GetRequestDeleteRange() != nil:
			done.Response = &pb.ResponseOp_ResponseDeleteRange{ResponseDeleteRange: &pb.DeleteRangeResponse{Deleted: 1}}
		}
		resp.Responses = append(resp.Responses, done)
	}
	return resp, nil
}

// Range returns the key that was written last.
func (s *replacedLeader) Range(context.Context, *pb.RangeRequest) (*pb.RangeResponse, error) {
	resp := &pb.RangeResponse{Header: s.header()}
	if k := s.key.Load(); k != nil {
		resp.Kvs = append(resp.Kvs, &mvccpb.KeyValue{Key: k.Key, Value: k.Value, Lease: k.Lease, CreateRevision: 9, ModRevision: 9})
	}
	return resp, nil
}

func (s *replacedLeader) header() *pb.ResponseHeader {
	return &pb.ResponseHeader{RaftTerm: s.term.Load(), Revision: 9}
}

func serveReplacedLeader(t *testing.T) (*replacedLeader, *Backend) {
	t.Helper()
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
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
	idle, r := request("", driver.Exclusive), request("", driver.Exclusive)
	acquire(t, b, idle)
	acquire(t, b, r)
	release(t, b, idle)
	must.OK(t, b.Renew(t.Context(), []driver.Hold{r.Hold})[0], "renewed by the leader")

	s.term.Store(6)
	if err := b.Renew(t.Context(), []driver.Hold{r.Hold})[0]; !errors.Is(err, errOldLeader) || errors.Is(err, driver.ErrLost) {
		t.Errorf("renewed by a replaced leader: %v, want an unknown outcome", err)
	}
	if _, err := b.Acquire(t.Context(), request("", driver.Exclusive)); !errors.Is(err, errOldLeader) || driver.Final(err) {
		t.Errorf("granted on a lease kept alive by a replaced leader: %v, want an unknown outcome", err)
	}

	s.knows.Store(6)
	expect.OK(t, b.Renew(t.Context(), []driver.Hold{r.Hold})[0], "renewed by its successor")
}

// That a leader finds no lease is no fact while the key is there: it may be a replaced one, and doesn't know the leases that
// its successor has granted.
func TestLeaseUnknownToAReplacedLeader(t *testing.T) {
	s, b := serveReplacedLeader(t)
	s.term.Store(6)
	r, lost := withOnLost(request("", driver.Exclusive))
	acquire(t, b, r)
	leaseOf(b, r).age(spareTTL)
	s.gone.Store(true)
	bounded, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	for _, ctx := range []context.Context{t.Context(), bounded} {
		if err := b.Renew(ctx, []driver.Hold{r.Hold})[0]; err == nil || errors.Is(err, driver.ErrLost) {
			t.Errorf("renewed by a replaced leader: %v, want an unknown outcome", err)
		}
	}
	if len(lost) > 0 {
		t.Error("the holder was notified of a loss")
	}

	s.key.Store(nil)
	expect.Be(t, b.Renew(t.Context(), []driver.Hold{r.Hold})[0], driver.ErrLost, "renewed without a key")
}

// A hold of another connection is moved to another lease by what the leader says is left, and not by what a replaced one does.
func TestTakeoverByAReplacedLeader(t *testing.T) {
	s, b := serveReplacedLeader(t)
	r := request("", driver.Exclusive)
	put := putKey(keyOf(b.folder(r.Name), 1), 1, &r, false)
	must.Get(b.client.Txn(t.Context()).Then(put).Commit())(t)
	s.term.Store(6)
	expect.Be(t, b.Renew(t.Context(), []driver.Hold{r.Hold})[0], errOldLeader, "renewed by a replaced leader")
	expect.Equal(t, s.key.Load().Lease, 1, "the hold was moved")
	s.knows.Store(6)
	renew(t, b, r)
	if lease := s.key.Load().Lease; lease == 1 {
		t.Error("the hold was not moved")
	}
}

// The first grant on an idle lease after a change of leaders keeps the lease alive.
func TestGrantAfterAChangeOfLeaders(t *testing.T) {
	s, b := serveReplacedLeader(t)
	first := request("", driver.Exclusive)
	acquire(t, b, first)
	release(t, b, first)
	s.term.Store(6)
	s.knows.Store(6)
	kept := s.kept.Load()
	acquire(t, b, request("", driver.Exclusive))
	if s.kept.Load() == kept {
		t.Error("no keep-alive under the new leader")
	}
}

// A grant whose key was found to be gone meanwhile is repeated: its holder would not be
// notified of the loss.
func TestGrantOfAKeyThatEndsMeanwhile(t *testing.T) {
	s, b := serveReplacedLeader(t)
	first, r := request("", driver.Exclusive), request("", driver.Exclusive)
	acquire(t, b, first)
	release(t, b, first)
	s.term.Store(6)
	s.knows.Store(6)
	var ended *ownerState
	ends := func() {
		ended = b.owners.get(r.Owner)
		b.owners.forget(ended)
	}
	s.meanwhile.Store(&ends)
	acquire(t, b, r)
	if o := b.owners.get(r.Owner); ended == nil || o == nil || o == ended {
		t.Errorf("granted a key that has ended: %+v", o)
	}
}

// A connection revokes only leases that it has granted: other keys may have another one, as those of another version's holds.
func TestSharedLease(t *testing.T) {
	t.Parallel()
	admin := shared(t)
	granted := must.Get(admin.client.Grant(t.Context(), 60))(t)
	var all []driver.Request
	for range 3 {
		r := request("", driver.Exclusive)
		put := putKey(keyOf(admin.folder(r.Name), granted.ID), granted.ID, &r, false)
		must.Get(admin.client.Do(t.Context(), put))(t)
		all = append(all, r)
	}
	for i, call := range []func(*Backend, driver.Request){
		func(b *Backend, r driver.Request) { release(t, b, r) },
		func(b *Backend, r driver.Request) { renew(t, b, r) },
	} {
		b := shared(t)
		call(b, all[i])
		b.Close() // after its revocations
		if left := must.Get(admin.client.TimeToLive(t.Context(), granted.ID))(t); left.TTL < 0 {
			t.Fatal("the lease is revoked")
		}
	}
	renew(t, admin, all[2])
}

// A pool that is full of leases of another TTL takes the ones that are used now.
func TestFullOfOtherLeases(t *testing.T) {
	t.Parallel()
	b := shared(t)
	for range maxIdle {
		b.leases.put(idleLease())
	}
	first, second := request("", driver.Exclusive), request("", driver.Exclusive)
	acquire(t, b, first)
	l := leaseOf(b, first)
	release(t, b, first)
	acquire(t, b, second)
	expect.Equal(t, leaseOf(b, second), l, "the lease is not used again")
}
