package etcdlock

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/distlock/distlock/driver"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
)

// lease is one of the backend's. All holds with the same TTL share one; a fixed hold has
// its own. Nothing keeps a lease alive but the calls that need it.
type lease struct {
	id      clientv3.LeaseID
	seconds int64 // asked for
	fixed   bool
	keeping chan struct{} // whoever keeps it alive before a call goes on

	mu    sync.Mutex
	sent  time.Time // when the last keep-alive that was answered was sent
	ttl   time.Duration
	term  uint64 // of the leader that answered it
	ended bool
}

// expiry is when the servers may end the lease.
func (l *lease) expiry() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.sent.Add(l.ttl)
}

// granted is the TTL that the servers gave.
func (l *lease) granted() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ttl
}

// spent is which part of the TTL has passed since the last keep-alive; 1 if all of it.
func (l *lease) spent() float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return 1
	}
	return min(float64(time.Since(l.sent))/float64(l.ttl), 1)
}

// leaderTerm is the term of the leader that answered the last keep-alive.
func (l *lease) leaderTerm() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.term
}

// leases are those of a backend.
type leases struct {
	client *clientv3.Client
	onEnd  func(clientv3.LeaseID) // is told of a lease that is gone
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu     sync.Mutex
	closed bool
	shared map[int64]*sharedLease      // by TTL in seconds
	all    map[clientv3.LeaseID]*lease // to be revoked at the end
	spare  *lease                      // made for a fixed hold that was refused
}

// sharedLease is a shared lease, or the attempt to have one.
type sharedLease struct {
	done chan struct{}
	l    *lease
	err  error
}

func (s *leases) init(client *clientv3.Client, ended func(clientv3.LeaseID)) {
	s.client, s.onEnd = client, ended
	s.ctx, s.cancel = context.WithCancel(clientv3.WithRequireLeader(context.Background()))
	s.shared, s.all = map[int64]*sharedLease{}, map[clientv3.LeaseID]*lease{}
}

// seconds is a TTL as etcd counts it.
func seconds(ttl time.Duration) int64 { return int64((ttl + time.Second - 1) / time.Second) }

// forTTL is the lease that holds of this TTL share. At least half of its life is left.
func (s *leases) forTTL(ctx context.Context, ttl time.Duration) (*lease, error) {
	for {
		l, err := s.sharedFor(ctx, seconds(ttl))
		if err != nil {
			return nil, err
		}
		if err := s.refresh(ctx, l); !errors.Is(err, rpctypes.ErrLeaseNotFound) {
			return l, err
		}
	}
}

// refresh makes sure that at least half of a lease's life is left.
func (s *leases) refresh(ctx context.Context, l *lease) error {
	switch spent := l.spent(); {
	case spent < 0.25:
		return nil
	case spent < 0.5:
		s.keepAliveLater(l)
		return nil
	}
	// Without its turn yet somebody else may do it meanwhile.
	return s.keepAliveIfSpent(ctx, l, 0.25)
}

// byID is the lease with this id, which may be another backend's.
func (s *leases) byID(id clientv3.LeaseID) *lease {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.all[id]; l != nil {
		return l
	}
	return &lease{id: id, keeping: make(chan struct{}, 1)}
}

// sharedFor is the shared lease of so many seconds, made if there is none that lives.
func (s *leases) sharedFor(ctx context.Context, secs int64) (*lease, error) {
	for {
		s.mu.Lock()
		m := s.shared[secs]
		if m == nil || m.ended() {
			if m != nil && m.l != nil {
				delete(s.all, m.l.id)
			}
			m = &sharedLease{done: make(chan struct{})}
			s.shared[secs] = m
			s.mu.Unlock()
			m.l, m.err = s.grant(ctx, secs)
			close(m.done)
			return m.l, m.err
		}
		s.mu.Unlock()
		select {
		case <-m.done:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if m.err == nil {
			return m.l, nil
		}
	}
}

// ended: what was made is of no use any more.
func (m *sharedLease) ended() bool {
	select {
	case <-m.done:
		return m.err != nil || m.l.spent() >= 1
	default:
		return false
	}
}

func (s *leases) grant(ctx context.Context, secs int64) (*lease, error) {
	l := &lease{seconds: secs, keeping: make(chan struct{}, 1), sent: time.Now()}
	resp, err := s.client.Grant(ctx, secs)
	if err != nil {
		return nil, err
	}
	l.id, l.ttl, l.term = resp.ID, time.Duration(resp.TTL)*time.Second, resp.RaftTerm
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		go s.revoke(l.id) // Close waits for nobody any more
		return nil, driver.ErrClosed
	}
	s.all[l.id] = l
	return l, nil
}

// dedicated is a lease for one hold, with all of its life.
func (s *leases) dedicated(ctx context.Context, ttl time.Duration) (*lease, error) {
	if l := s.swapSpare(nil); l != nil {
		if l.seconds == seconds(ttl) && s.keepAlive(ctx, l) == nil {
			return l, nil
		}
		s.revokeLater(l)
	}
	l, err := s.grant(ctx, seconds(ttl))
	if err == nil {
		l.fixed = true
	}
	return l, err
}

// keepSpare keeps a fixed hold's lease, to which no key was ever attached, for the next one.
func (s *leases) keepSpare(l *lease) {
	if old := s.swapSpare(l); old != nil {
		s.revokeLater(old)
	}
}

func (s *leases) swapSpare(l *lease) (old *lease) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old, s.spare = s.spare, l
	return old
}

// keepAliveLater keeps a lease alive in the background.
func (s *leases) keepAliveLater(l *lease) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || len(l.keeping) > 0 {
		return
	}
	s.wg.Go(func() {
		ctx, cancel := context.WithDeadline(s.ctx, l.expiry())
		defer cancel()
		s.keepAliveIfSpent(ctx, l, 0.25)
	})
}

// keepAliveIfSpent keeps a lease alive if more of its TTL is spent than so much, also when
// many want that at once.
func (s *leases) keepAliveIfSpent(ctx context.Context, l *lease, spent float64) error {
	select {
	case l.keeping <- struct{}{}:
		defer func() { <-l.keeping }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if l.spent() <= spent {
		return nil
	}
	return s.keepAlive(ctx, l)
}

// keepAlive keeps a lease alive. ErrLeaseNotFound is a fact, and ends all its holds.
func (s *leases) keepAlive(ctx context.Context, l *lease) error {
	ask := func(ctx context.Context, on *grpc.ClientConn) (keepAliveReply, error) {
		return keepAliveOnce(ctx, on, l.id)
	}
	k, err := hedge(ctx, func(ctx context.Context) (keepAliveReply, error) { return ask(ctx, s.client.ActiveConnection()) }, onNewConn(s.client, ask))
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		s.markEnded(l)
		return err
	}
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.sent.Before(k.sent) {
		l.sent, l.ttl, l.term = k.sent, k.ttl, k.term
	}
	return nil
}

var errOldLeader = errors.New("the lease was kept alive by a leader that has been replaced")

// ensureTerm makes sure that the last keep-alive was answered by the leader that has committed a
// transaction, or by a later one. A leader that was replaced while it was paused may still
// answer keep-alives; its successor, who ends leases, knows nothing of them.
func (s *leases) ensureTerm(ctx context.Context, l *lease, term uint64) error {
	for range 3 {
		if l.leaderTerm() >= term {
			return nil
		}
		if err := s.keepAlive(ctx, l); err != nil {
			return err
		}
	}
	return errOldLeader
}

// markEnded notes that a lease has ended.
func (s *leases) markEnded(l *lease) {
	l.mu.Lock()
	l.ended = true
	l.mu.Unlock()
	s.mu.Lock()
	delete(s.all, l.id)
	s.mu.Unlock()
	s.onEnd(l.id)
}

// keepAliveReply is an answered keep-alive.
type keepAliveReply struct {
	sent time.Time // when it was asked for
	ttl  time.Duration
	term uint64 // the leader's
}

// keepAliveOnce makes one attempt. That of clientv3 repeats itself, without a pause, for as
// long as no server answers. A stream of one message is a call, and costs less: for each
// stream the client logs in anew, if it has a password.
func keepAliveOnce(ctx context.Context, on *grpc.ClientConn, id clientv3.LeaseID) (keepAliveReply, error) {
	k, resp := keepAliveReply{sent: time.Now()}, &pb.LeaseKeepAliveResponse{}
	err := on.Invoke(ctx, pb.Lease_LeaseKeepAlive_FullMethodName, &pb.LeaseKeepAliveRequest{ID: int64(id)}, resp)
	if err != nil {
		return k, clientv3.ContextError(ctx, err)
	}
	if resp.TTL <= 0 {
		return k, rpctypes.ErrLeaseNotFound
	}
	k.ttl, k.term = time.Duration(resp.TTL)*time.Second, resp.Header.GetRaftTerm()
	return k, nil
}

// revokeLater ends a fixed hold's lease, which nobody needs any more.
func (s *leases) revokeLater(l *lease) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	delete(s.all, l.id)
	s.wg.Go(func() { s.revoke(l.id) })
}

func (s *leases) revoke(id clientv3.LeaseID) {
	ctx, cancel := context.WithTimeout(clientv3.WithRequireLeader(context.Background()), closeTimeout)
	defer cancel()
	s.client.Revoke(ctx, id)
}

// close ends all leases, as far as the servers answer in time.
func (s *leases) close() {
	s.cancel()
	s.mu.Lock()
	s.closed = true
	for id := range s.all {
		s.wg.Go(func() { s.revoke(id) })
	}
	s.mu.Unlock()
	s.wg.Wait()
}
