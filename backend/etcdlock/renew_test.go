package etcdlock

import (
	"context"
	"errors"
	"math"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// A hold that is renewed for longer than its lease lives moves to another lease, and keeps its key and its fence. When the
// longer time is over it moves back.
func TestRenewForLonger(t *testing.T) {
	b, admin := shared(t), shared(t)
	r := request("", driver.Exclusive)
	r.TTL = 20 * time.Second
	g := acquire(t, b, r)
	before := storedKeys(t, admin, r.Name)[0]
	longer := r.Hold
	longer.TTL = time.Hour
	for i, h := range []driver.Hold{longer, longer, r.Hold} {
		must.OK(t, b.Renew(t.Context(), []driver.Hold{h})[0])
		after := storedKeys(t, admin, r.Name)[0]
		if after.created != before.created || after.lease == before.lease {
			t.Errorf("renewal %d: from %+v to %+v", i, before, after)
		}
		left, err := admin.client.TimeToLive(t.Context(), after.lease)
		if err != nil || left.TTL < 3000 {
			t.Errorf("renewal %d: lives for %d s, %v", i, left.TTL, err)
		}
	}
	eventually(t, "the lease that it has left is revoked", func() bool {
		left, err := admin.client.TimeToLive(t.Context(), before.lease)
		return err == nil && left.TTL < 0
	})
	leaseOf(b, r).age(longer.TTL - r.TTL/2)
	must.OK(t, b.Renew(t.Context(), []driver.Hold{r.Hold})[0])
	if l := leaseOf(b, r); l.ttl() != leaseTTL(r.TTL) || storedKeys(t, admin, r.Name)[0].lease != l.id {
		t.Errorf("after the longer time its lease has a TTL of %v", l.ttl())
	}
	info, err := admin.Inspect(t.Context(), r.Name)
	if err != nil || len(info.Holders) != 1 || info.Holders[0].Fence != g.Fence {
		t.Errorf("Inspect shows another fence than the grant had: %+v, %v", info, err)
	}
	release(t, b, r)
}

// A move to another lease that had no answer can't be executed after the key was written again.
func TestLateMoveToAnotherLease(t *testing.T) {
	for name, by := range map[string]func(own, other *Backend) *Backend{
		"own connection":     func(own, _ *Backend) *Backend { return own },
		"another connection": func(_, other *Backend) *Backend { return other },
	} {
		for _, fate := range []txnFate{muted, heldBack} {
			b, other := shared(t), shared(t)
			r := request("", driver.Exclusive)
			r.TTL = 20 * time.Second
			acquire(t, b, r)
			longer := r.Hold
			longer.TTL = time.Minute
			kv := delayCalls(b)
			kv.next(fate)
			must.Be(t, b.Renew(t.Context(), []driver.Hold{longer})[0], context.DeadlineExceeded, name, "the move")
			next := by(b, other)
			must.OK(t, next.Renew(t.Context(), []driver.Hold{r.Hold})[0], name)
			if fate == heldBack {
				kv.deliver(t)
			}
			if now, l := onlyKey(t, b, r.Name), leaseOf(next, r); now.lease != l.id {
				t.Errorf("%s: the key has lease %x, and its holder trusts in %x", name, now.lease, l.id)
			}
			release(t, next, r)
		}
	}
}

// Two connections renew one hold in turn. A connection writes the key only if it has not written it last, and the fence
// stays visible.
func TestHoldGoesToAndFro(t *testing.T) {
	t.Parallel()
	one, two := shared(t), shared(t)
	r := request("", driver.Exclusive)
	g := acquire(t, one, r)
	for i, step := range []struct {
		b      *Backend
		writes bool
	}{{one, false}, {one, false}, {two, true}, {two, false}, {one, true}, {one, false}} {
		before := onlyKey(t, one, r.Name).modified
		renew(t, step.b, r)
		if wrote := onlyKey(t, one, r.Name).modified != before; wrote != step.writes {
			t.Errorf("renewal %d wrote: %v, want %v", i+1, wrote, step.writes)
		}
		info, err := one.Inspect(t.Context(), r.Name)
		if err != nil || len(info.Holders) != 1 || info.Holders[0].Fence != g.Fence {
			t.Errorf("after renewal %d: %+v, %v; want fence %d", i+1, info, err, g.Fence)
		}
	}
	release(t, two, r)
	expect.Be(t, one.Renew(t.Context(), []driver.Hold{r.Hold})[0], driver.ErrLost, "renewed after its release")
	if one.owners.get(r.Owner) != nil {
		t.Error("the connection that has granted it remembers it")
	}
}

// A renewal through another connection, for less than was promised before, shortens nothing.
func TestShorterRenewalThroughAnotherConnection(t *testing.T) {
	t.Parallel()
	one, two := shared(t), shared(t)
	r := request("", driver.Exclusive)
	r.TTL = time.Hour
	acquire(t, one, r)
	brief := r
	brief.TTL = 20 * time.Second
	for _, b := range []*Backend{two, one, two} {
		renew(t, b, brief)
		left, err := one.client.TimeToLive(t.Context(), onlyKey(t, one, r.Name).lease)
		if err != nil || left.TTL < 3000 {
			t.Errorf("%d s are left, %v", left.TTL, err)
		}
	}
}

// A hold that another connection has released leaves its lease to nobody: a connection revokes what it has deleted.
func TestLeaseOfAnotherConnectionsHold(t *testing.T) {
	t.Parallel()
	one, two := shared(t), shared(t)
	r := request("", driver.Exclusive)
	acquire(t, one, r)
	l := leaseOf(one, r)
	renew(t, two, r)
	release(t, two, r)
	expect.Be(t, one.Release(t.Context(), r.Hold), driver.ErrLost, "released again")
	next := request(r.Name, driver.Exclusive)
	acquire(t, one, next)
	if leaseOf(one, next).id == l.id {
		t.Error("the lease is used again")
	}
	eventually(t, "the lease is revoked", func() bool {
		left, err := two.client.TimeToLive(t.Context(), l.id)
		return err == nil && left.TTL < 0
	})
	renew(t, one, next)
}

// A place whose connection was lost lets the next one in after its turn.
func TestPlaceOfALostConnection(t *testing.T) {
	t.Parallel()
	lost, b := shared(t), shared(t)
	holder := request("", driver.Exclusive)
	acquire(t, b, holder)
	refused(t, lost, queued(request(holder.Name, driver.Exclusive)), driver.ErrHeld)
	lost.client.Close()
	release(t, b, holder)
	next := queued(request(holder.Name, driver.Exclusive))
	since := time.Now()
	eventually(t, "the place is passed", func() bool {
		_, err := b.Acquire(t.Context(), next)
		return err == nil
	})
	if waited := time.Since(since); waited < driver.TurnLife {
		t.Errorf("the place was passed after %v, before its turn of %v was over", waited, driver.TurnLife)
	}
}

// The longest TTL of the core is granted, and one that overflows is refused at once.
func TestTooLong(t *testing.T) {
	b := mustOpen(t, testserver.SharedEtcd(t).URL())
	for _, fixed := range []bool{false, true} {
		r := request("", driver.Exclusive)
		r.TTL, r.Fixed = driver.MaxTTL, fixed
		acquire(t, b, r)
		longer := r.Hold
		longer.TTL = math.MaxInt64
		if err := b.Renew(t.Context(), []driver.Hold{longer})[0]; !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("fixed %v: renewed for %v: %v", fixed, longer.TTL, err)
		}
		next := request("", driver.Exclusive)
		next.TTL, next.Fixed = longer.TTL, fixed
		refused(t, b, next, driver.ErrInvalid)
		release(t, b, r)
	}
}

// shortStreams ends each stream of keep-alives after that many answers, as a server does that is too busy.
type shortStreams struct {
	grpc.ClientStream
	left int
}

func (s *shortStreams) RecvMsg(m any) error {
	if s.left--; s.left < 0 {
		return status.Error(codes.Unavailable, "busy")
	}
	return s.ClientStream.RecvMsg(m)
}

// Keep-alives that were answered before their stream ended count, and are not sent again.
func TestKeepAlivesOfABrokenStream(t *testing.T) {
	const answers = 10
	c := newClientOf(t, testserver.Etcd(t, testserver.EtcdOptions{}).Addr(), grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string,
		streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		s, err := streamer(ctx, desc, conn, method, opts...)
		if method == leaseKeepAlive {
			s = &shortStreams{s, answers}
		}
		return s, err
	}))
	b := backendOf(t, c, nil)
	var holds []driver.Hold
	for range hedgeRounds * answers {
		r := request("", driver.Exclusive)
		acquire(t, b, r)
		holds = append(holds, r.Hold)
	}
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	for i, err := range b.Renew(ctx, holds) {
		expect.OK(t, err, "hold", i)
	}
	for _, h := range holds {
		must.OK(t, b.Release(t.Context(), h))
	}
}
