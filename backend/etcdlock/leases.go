package etcdlock

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/distlock/distlock/internal/wait"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
)

// errChanged says that an Owner's key, or a lease, is not as this connection knew it. Nothing was granted, and the call looks
// again at what is stored.
var errChanged = errors.New("others changed the key or the lease again and again")

// lease is the etcd lease of one hold, or of one place in the queue. A lease moves between these states:
//
//	state    has                                            ends by
//	idle     no key, and no call for it is unanswered       take: used; retire, after a while without use
//	used     one Owner, and at most one key                 put, after an answered deletion or refusal: idle; retire
//	retired  perhaps a key, perhaps a call that is late     its revocation, or its TTL if that has no answer
//
// Only an idle lease is used again. So what arrives late finds no lease, or writes on the condition that a key is as it was
// long ago. A keep-alive is the exception: it may prolong the lease of a later hold, by less than a TTL.
type lease struct {
	id    clientv3.LeaseID
	own   bool // this connection has granted it, and has sent no revocation; nobody else may use it again
	reply atomic.Pointer[keepAliveReply]
	since time.Time // idle since then; the mutex of leases guards it
}

func newLease(id clientv3.LeaseID, k keepAliveReply) *lease {
	l := &lease{id: id}
	l.reply.Store(&k)
	return l
}

// ttl returns the TTL that the lease was granted with; 0: not known yet.
func (l *lease) ttl() time.Duration { return l.reply.Load().ttl }

// expiry returns when the servers may end the lease.
func (l *lease) expiry() time.Time {
	k := l.reply.Load()
	return k.sent.Add(k.ttl)
}

// trusted reports whether the lease lives until then for certain. A leader that was replaced while it was paused may still
// answer keep-alives, and its successor, which ends leases, doesn't know of them: so the answer must be by the leader
// of this term, or a later one.
func (l *lease) trusted(until time.Time, term uint64) bool {
	return l.reply.Load().term >= term && !l.expiry().Before(until)
}

// fits reports whether the lease is made for holds with this TTL: one keep-alive is enough, and not too much.
func (l *lease) fits(ttl time.Duration) bool {
	return l.ttl() >= ttl && l.ttl() <= leaseTTL(ttl)
}

// record keeps the answer to the latest keep-alive.
func (l *lease) record(k *keepAliveReply) {
	for {
		last := l.reply.Load()
		if !last.sent.Before(k.sent) || l.reply.CompareAndSwap(last, k) {
			return
		}
	}
}

// spareTTL is how much longer than its hold a lease lives, so that a lease is used again and again before it must be kept
// alive.
const spareTTL = time.Second

// leaseTTL returns the TTL of the lease for a hold.
func leaseTTL(ttl time.Duration) time.Duration {
	return (ttl + time.Second - 1).Truncate(time.Second) + spareTTL
}

const (
	maxIdle     = 128              // leases
	idleLife    = 30 * time.Second // after which a lease that nobody uses is revoked
	maxRevoking = 4                // revocations in flight

	// closeTimeout bounds how long Close, and each retirement, tries to revoke leases.
	closeTimeout = 3 * time.Second
)

// leases grants the leases of a connection, and keeps those that are idle.
type leases struct {
	client *clientv3.Client
	wg     wait.Group
	pulse  pulse
	fresh  freshConns

	mu       sync.Mutex
	closed   bool
	idle     []*lease // the last one was used last
	timer    *time.Timer
	retired  []clientv3.LeaseID
	revoking int
}

// take returns a lease for a hold with this TTL. It may be older than spareTTL: see prolong.
func (s *leases) take(ctx context.Context, ttl time.Duration) (*lease, error) {
	if l := s.takeIdle(leaseTTL(ttl)); l != nil {
		return l, nil
	}
	sent := time.Now()
	resp, err := s.client.Grant(ctx, int64(leaseTTL(ttl)/time.Second))
	if err != nil {
		return nil, err
	}
	l := newLease(resp.ID, keepAliveReply{sent, time.Duration(resp.TTL) * time.Second, resp.RaftTerm})
	l.own = true
	return l, nil
}

// takeFresh returns a lease that lives for ttl from now on.
func (s *leases) takeFresh(ctx context.Context, ttl time.Duration) (*lease, error) {
	until := time.Now().Add(ttl)
	l, err := s.take(ctx, ttl)
	if err != nil || l.trusted(until, 0) {
		return l, err
	}
	err = s.keepAlive(ctx, l)
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		s.forgetIdle()
		return nil, errChanged
	}
	if err != nil {
		s.put(l)
	}
	return l, err
}

func (s *leases) takeIdle(ttl time.Duration) *lease {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := len(s.idle) - 1; i >= 0; i-- {
		if l := s.idle[i]; l.ttl() == ttl && time.Until(l.expiry()) > 0 {
			s.idle = slices.Delete(s.idle, i, i+1)
			return l
		}
	}
	return nil
}

// prolong begins to keep a lease alive that doesn't live until then, beside the call that is about to use it. It
// returns nil, or a channel that is closed when the lease was kept alive.
func (s *leases) prolong(ctx context.Context, l *lease, until time.Time) <-chan struct{} {
	if l.trusted(until, 0) {
		return nil
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.keepAlive(ctx, l)
	}()
	return done
}

// put gives a lease back that has no key, and no call without an answer.
func (s *leases) put(l *lease) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || !l.own {
		s.retireLocked(l)
		return
	}
	if len(s.idle) == maxIdle {
		s.retireLocked(s.idle[0])
		s.idle = slices.Delete(s.idle, 0, 1)
	}
	l.since = time.Now()
	s.idle = append(s.idle, l)
	if s.timer == nil {
		s.timer = time.AfterFunc(idleLife, s.trim)
	}
}

// trim retires what was not used for long.
func (s *leases) trim() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.timer = nil
	n := 0
	for n < len(s.idle) && time.Since(s.idle[n].since) >= idleLife {
		s.retireLocked(s.idle[n])
		n++
	}
	if s.idle = slices.Delete(s.idle, 0, n); len(s.idle) > 0 && !s.closed {
		s.timer = time.AfterFunc(time.Until(s.idle[0].since.Add(idleLife)), s.trim)
	}
}

// forgetIdle forgets the idle leases, after one was found to have ended: others may have ended with it.
func (s *leases) forgetIdle() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.idle = nil
}

// retire revokes a lease in the background. If that has no answer, the lease ends by its TTL.
func (s *leases) retire(l *lease) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.retireLocked(l)
}

func (s *leases) retireLocked(l *lease) {
	s.retired = append(s.retired, l.id)
	if !s.closed && s.revoking < maxRevoking {
		s.revoking++
		s.wg.Go(s.revokeRetired)
	}
}

func (s *leases) revokeRetired() {
	for {
		s.mu.Lock()
		if len(s.retired) == 0 {
			s.revoking--
			s.mu.Unlock()
			return
		}
		id := s.retired[0]
		s.retired = s.retired[1:]
		s.mu.Unlock()
		ctx, cancel := context.WithTimeout(clientv3.WithRequireLeader(s.client.Ctx()), closeTimeout)
		s.revoke(ctx, id)
		cancel()
	}
}

// revoke ends a lease, and its key. A nil error says that nothing can be attached to it any more.
func (s *leases) revoke(ctx context.Context, id clientv3.LeaseID) error {
	_, err := s.client.Revoke(ctx, id)
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return nil
	}
	return err
}

// close revokes the leases without an Owner, as far as the servers answer in time. The others end by their TTL.
func (s *leases) close() {
	s.mu.Lock()
	s.closed = true
	if s.timer != nil {
		s.timer.Stop()
	}
	for _, l := range s.idle {
		s.retired = append(s.retired, l.id)
	}
	s.idle = nil
	ids := s.retired
	s.retired = nil
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(clientv3.WithRequireLeader(s.client.Ctx()), closeTimeout)
	defer cancel()
	for _, id := range ids {
		s.wg.Go(func() { s.revoke(ctx, id) })
	}
	s.wg.Wait()
}

// keepAlive keeps a lease alive. ErrLeaseNotFound is no fact about a hold: a server may not know of a young
// lease yet.
func (s *leases) keepAlive(ctx context.Context, l *lease) error {
	return s.keepAliveAll(ctx, []*lease{l})[0]
}

// maxStream is how many keep-alives share a stream. A server answers them one after the other, and while others write it keeps each
// waiting until it has applied what it knows: streams wait side by side.
const maxStream = 16

// keepAliveAll keeps leases alive.
func (s *leases) keepAliveAll(ctx context.Context, all []*lease) []error {
	if len(all) <= maxStream {
		return s.keepAliveStream(ctx, all)
	}
	errs := make([]error, len(all))
	var wg wait.Group
	for n := 0; n < len(all); n += maxStream {
		some := all[n:min(n+maxStream, len(all))]
		wg.Go(func() { copy(errs[n:], s.keepAliveStream(ctx, some)) })
	}
	wg.Wait()
	return errs
}

// keepAliveStream keeps leases alive by one request, or by one stream.
func (s *leases) keepAliveStream(ctx context.Context, all []*lease) []error {
	calls := &keepAlives{ids: make([]clientv3.LeaseID, len(all)), answered: make([]*keepAliveReply, len(all))}
	for i, l := range all {
		calls.ids[i] = l.id
	}
	_, err := hedge(ctx, &s.pulse, func(ctx context.Context) (struct{}, error) {
		return calls.send(ctx, s.client.ActiveConnection(), s.pulse.beat)
	}, onNewConn(s, func(ctx context.Context, conn *grpc.ClientConn) (struct{}, error) {
		return calls.send(ctx, conn, func() {})
	}))
	errs := make([]error, len(all))
	for i, k := range calls.take() {
		switch {
		case k == nil:
			errs[i] = err
		case k.ttl <= 0:
			errs[i] = rpctypes.ErrLeaseNotFound
		default:
			all[i].record(k)
		}
	}
	return errs
}
