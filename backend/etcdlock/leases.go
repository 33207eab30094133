package etcdlock

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/wait"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
)

// lease is an etcd lease. All holds with the same TTL share one; a fixed hold has its own. Only
// the calls that need a lease keep it alive.
type lease struct {
	id      clientv3.LeaseID
	seconds int64 // requested
	fixed   bool
	life    int64         // of detached holds, in seconds: the longest that it is for; 0: they are not detached
	keeping chan struct{} // a mutex of the calls that keep it alive

	mu    sync.Mutex
	reply keepAliveReply // the last one
	ended bool
}

// keepAliveReply is an answered keep-alive, or the grant.
type keepAliveReply struct {
	sent time.Time // the request
	ttl  time.Duration
	term uint64 // the leader's
}

func newLease(id clientv3.LeaseID, k keepAliveReply) *lease {
	return &lease{id: id, keeping: make(chan struct{}, 1), reply: k}
}

// expiry returns when the servers may end the lease.
func (k keepAliveReply) expiry() time.Time { return k.sent.Add(k.ttl) }

// lastReply returns the last answer to a keep-alive.
func (l *lease) lastReply() keepAliveReply {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.reply
}

// reserve returns how much of the TTL must be left when an attempt relies on the lease: a detached hold
// lives for its own TTL even if this backend dies with the answer.
func (l *lease) reserve(ttl time.Duration) time.Duration {
	if l.life > 0 {
		return time.Duration(l.life) * time.Second
	}
	return ttl / 2
}

// left returns how much is left of the lease for certain, and from when on it should be kept alive and
// has to be.
func (l *lease) left() (left, soon, now time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now = l.reserve(l.reply.ttl)
	if soon = (now + l.reply.ttl) / 2; l.ended {
		return -1, soon, now
	}
	return time.Until(l.reply.expiry()), soon, now
}

// leases has the leases of a backend.
type leases struct {
	client   *clientv3.Client
	detached bool                   // the holds are
	onEnd    func(clientv3.LeaseID) // called for a lease that has ended
	ctx      context.Context
	cancel   context.CancelFunc
	wg       wait.Group

	granting wait.KeyedMutex[int64] // by TTL in seconds

	mu     sync.Mutex
	closed bool
	shared map[int64]*lease            // by TTL in seconds
	all    map[clientv3.LeaseID]*lease // which close revokes
	spare  *lease                      // made for a fixed hold that was refused
}

func (s *leases) init(client *clientv3.Client, onEnd func(clientv3.LeaseID)) {
	s.client, s.onEnd = client, onEnd
	s.ctx, s.cancel = context.WithCancel(clientv3.WithRequireLeader(context.Background()))
	s.shared, s.all = map[int64]*lease{}, map[clientv3.LeaseID]*lease{}
}

// seconds rounds a TTL up.
func seconds(ttl time.Duration) int64 { return int64((ttl + time.Second - 1) / time.Second) }

// forTTL returns the lease that holds of this TTL share, with at least half of its TTL left, or the
// whole life of detached holds.
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

// sharedFor returns the shared lease of a TTL. It creates one if none lives.
func (s *leases) sharedFor(ctx context.Context, secs int64) (*lease, error) {
	if l := s.living(secs); l != nil {
		return l, nil
	}
	unlock, err := s.granting.Lock(ctx, secs)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if l := s.living(secs); l != nil {
		return l, nil
	}
	l, err := s.grant(ctx, secs)
	if err == nil {
		s.mu.Lock()
		s.shared[secs] = l
		s.mu.Unlock()
	}
	return l, err
}

// living returns the shared lease of a TTL; nil if there is none, or it has ended.
func (s *leases) living(secs int64) *lease {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.shared[secs]
	if l == nil {
		return nil
	}
	if left, _, _ := l.left(); left <= 0 {
		delete(s.shared, secs)
		delete(s.all, l.id)
		return nil
	}
	return l
}

func (s *leases) grant(ctx context.Context, secs int64) (*lease, error) {
	sent, life, ttl := time.Now(), int64(0), secs
	if s.detached {
		life, ttl = secs, detachedLease(secs)
	}
	resp, err := s.client.Grant(ctx, ttl)
	if err != nil {
		return nil, err
	}
	l := newLease(resp.ID, keepAliveReply{sent, time.Duration(resp.TTL) * time.Second, resp.RaftTerm})
	l.seconds, l.life = secs, life
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		go s.revoke(l.id) // close doesn't wait any more
		return nil, driver.ErrClosed
	}
	s.all[l.id] = l
	return l, nil
}

// dedicated returns a lease for one fixed hold, with its whole TTL left.
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

// keepSpare keeps the lease of a refused fixed hold, which has no keys, for the next one.
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

// has reports whether this backend has granted a lease, which lives as far as it knows.
func (s *leases) has(id clientv3.LeaseID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all[id] != nil
}

// byID returns the lease with this id, which may be another backend's.
func (s *leases) byID(id clientv3.LeaseID) *lease {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.all[id]; l != nil {
		return l
	}
	return newLease(id, keepAliveReply{})
}

// refresh makes sure that at least half of a lease's TTL is left, or the whole life of detached holds.
func (s *leases) refresh(ctx context.Context, l *lease) error {
	switch left, soon, now := l.left(); {
	case left > soon:
		return nil
	case left > now:
		s.refreshLater(l)
		return nil
	}
	return s.keepAliveOnce(ctx, l)
}

// refreshLater keeps a lease alive in the background.
func (s *leases) refreshLater(l *lease) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || len(l.keeping) > 0 {
		return
	}
	s.wg.Go(func() {
		ctx, cancel := context.WithDeadline(s.ctx, l.lastReply().expiry())
		defer cancel()
		s.keepAliveOnce(ctx, l)
	})
}

// keepAliveOnce keeps a lease alive, unless another call has done so just before.
func (s *leases) keepAliveOnce(ctx context.Context, l *lease) error {
	select {
	case l.keeping <- struct{}{}:
		defer func() { <-l.keeping }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if left, soon, _ := l.left(); left >= soon && left > 0 {
		return nil
	}
	return s.keepAlive(ctx, l)
}

// keepAlive keeps a lease alive. ErrLeaseNotFound is final: all its holds have ended.
func (s *leases) keepAlive(ctx context.Context, l *lease) error {
	send := func(ctx context.Context, conn *grpc.ClientConn) (keepAliveReply, error) {
		k, err := sendKeepAlive(ctx, conn, l.id)
		if errors.Is(err, rpctypes.ErrLeaseNotFound) && k.term < l.lastReply().term {
			err = errOldLeader // the lease may be its successor's
		}
		return k, err
	}
	k, err := hedge(ctx, func(ctx context.Context) (keepAliveReply, error) {
		return send(ctx, s.client.ActiveConnection())
	}, onNewConn(s.client, send))
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		s.markEnded(l)
	}
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.reply.sent.Before(k.sent) {
		l.reply = k
	}
	return nil
}

// sendKeepAlive makes one attempt. The client's own method repeats itself, without a pause, until
// a server answers. A stream of one message is a unary call, and cheaper: the client logs in anew
// for each stream, if it has a password.
func sendKeepAlive(ctx context.Context, conn *grpc.ClientConn, id clientv3.LeaseID) (keepAliveReply, error) {
	k, resp := keepAliveReply{sent: time.Now()}, &pb.LeaseKeepAliveResponse{}
	err := conn.Invoke(ctx, "/etcdserverpb.Lease/LeaseKeepAlive", &pb.LeaseKeepAliveRequest{ID: int64(id)}, resp)
	if err != nil {
		return k, clientv3.ContextError(ctx, err)
	}
	k.ttl, k.term = time.Duration(resp.TTL)*time.Second, resp.Header.GetRaftTerm()
	if k.ttl <= 0 {
		return k, rpctypes.ErrLeaseNotFound
	}
	return k, nil
}

var errOldLeader = errors.New("a leader that has been replaced has answered for the lease")

// ensureTerm makes sure that the last keep-alive was answered by the leader that has committed a
// transaction, or by a later one. A leader that was replaced while it was paused may still answer
// keep-alives, and its successor, which ends leases, doesn't know of them.
func (s *leases) ensureTerm(ctx context.Context, l *lease, term uint64) error {
	for range 3 {
		if l.lastReply().term >= term {
			return nil
		}
		if err := s.keepAlive(ctx, l); err != nil {
			return err
		}
	}
	return errOldLeader
}

// markEnded records that a lease has ended.
func (s *leases) markEnded(l *lease) {
	l.mu.Lock()
	l.ended = true
	l.mu.Unlock()
	s.mu.Lock()
	delete(s.all, l.id)
	s.mu.Unlock()
	s.onEnd(l.id)
}

// revokeLater revokes the lease of a fixed hold in the background.
func (s *leases) revokeLater(l *lease) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	delete(s.all, l.id)
	s.wg.Go(func() { s.revoke(l.id) })
}

// closeTimeout bounds how long Close tries to revoke leases.
const closeTimeout = 3 * time.Second

func (s *leases) revoke(id clientv3.LeaseID) {
	ctx, cancel := context.WithTimeout(clientv3.WithRequireLeader(context.Background()), closeTimeout)
	defer cancel()
	s.client.Revoke(ctx, id)
}

// close revokes all leases but those to keep, as far as the servers answer in time.
func (s *leases) close(keep func(clientv3.LeaseID) bool) {
	s.cancel()
	s.mu.Lock()
	s.closed = true
	ids := slices.Collect(maps.Keys(s.all))
	s.mu.Unlock()
	for _, id := range ids {
		if !keep(id) {
			s.wg.Go(func() { s.revoke(id) })
		}
	}
	s.wg.Wait()
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

// detachedLease returns the TTL in seconds of the lease for holds of up to life seconds.
func detachedLease(life int64) int64 { return life + (life+1)/2 }
