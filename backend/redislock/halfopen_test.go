package redislock

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/faultproxy"
	"github.com/distlock/distlock/internal/testkit/testserver"
	"github.com/redis/go-redis/v9"
)

// strand lets all connections that exist be silent, as a firewall does that forgot them. New
// ones pass.
func strand(p *faultproxy.Proxy) {
	var made atomic.Bool
	p.Sever(func(net.Conn) bool { return !made.Load() })
	made.Store(true)
}

// endlessly opens a backend by URL that waits for an answer for much longer than a test.
func endlessly(params string) func(t *testing.T, addr string) *Backend {
	return func(t *testing.T, addr string) *Backend {
		b, err := Open(t.Context(), "redis://"+addr+"?timeout=1h"+params)
		return opened(t, b, err)
	}
}

// within calls f with little time, again and again, until it has an answer.
func within(t *testing.T, what string, f func(ctx context.Context) error) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		err := f(ctx)
		cancel()
		if err == nil || errors.Is(err, driver.ErrLost) { // a try without an answer had released it
			return
		}
		if time.Now().After(end) {
			t.Errorf("%s: %v", what, err)
			return
		}
	}
}

// patientWays are the ways that commands go.
var patientWays = map[string]func(t *testing.T, addr string) *Backend{
	"scripts":    endlessly(""),
	"no scripts": endlessly("&scripts=off"),
	"replicas":   endlessly("&replicas=1&replica_timeout=10s"),
	"go-redis": func(t *testing.T, addr string) *Backend {
		c := redis.NewClient(&redis.Options{Addr: addr, ReadTimeout: time.Hour, MaintNotificationsConfig: noUpgrades})
		b, err := NewGoRedis(c, nil)
		return closing(t, opened(t, b, err), func() { c.Close() })
	},
}

// eachHalfOpen tests a backend with a warm connection for each way that commands go.
func eachHalfOpen(t *testing.T, test func(t *testing.T, b *Backend, p *faultproxy.Proxy)) {
	for name, open := range patientWays {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			master, _ := replicated(t)
			p := faultproxy.New(t, master.Addr())
			b := open(t, p.Addr())
			warm(t, b, driver.Exclusive)
			test(t, b, p)
		})
	}
}

// The connection is dead and does not end. Renewals and locks of all go on through another.
func TestHalfOpenConnection(t *testing.T) {
	eachHalfOpen(t, func(t *testing.T, b *Backend, p *faultproxy.Proxy) {
		var holds []driver.Hold
		for range 8 {
			r := request("", driver.Exclusive)
			acquire(t, b, r)
			holds = append(holds, r.Hold)
		}
		strand(p)
		var wg sync.WaitGroup
		for _, h := range holds {
			wg.Go(func() {
				within(t, "renewal", func(ctx context.Context) error { return b.Renew(ctx, []driver.Hold{h})[0] })
				within(t, "release", func(ctx context.Context) error { return b.Release(ctx, h) })
			})
			wg.Go(func() {
				r := request("", driver.Exclusive)
				within(t, "acquire", func(ctx context.Context) error {
					_, err := b.Acquire(ctx, r)
					return err
				})
			})
		}
		wg.Wait()
	})
}

// Order is owed to one Owner, and to no others: the release of an acquire without an answer
// waits for what becomes of that.
func TestHalfOpenConnectionKeepsAnOwnersOrder(t *testing.T) {
	eachHalfOpen(t, func(t *testing.T, b *Backend, p *faultproxy.Proxy) {
		strand(p)
		r := request("", driver.Exclusive)
		ctx, cancel := timeout(t, 200*time.Millisecond)
		defer cancel()
		_, err := b.Acquire(ctx, r)
		unknown(t, "acquire", err)
		other := request(r.Name, driver.Exclusive)
		within(t, "another's acquire", func(ctx context.Context) error {
			_, err := b.Acquire(ctx, other)
			return err
		})
		ctx, cancel = timeout(t, 500*time.Millisecond)
		defer cancel()
		unknown(t, "release", b.Release(ctx, r.Hold))
		p.Pass() // the connection ends, and with it what it was to carry
		within(t, "release", func(ctx context.Context) error { return b.Release(ctx, r.Hold) })
		within(t, "another's release", func(ctx context.Context) error { return b.Release(ctx, other.Hold) })
	})
}

// A hold of a few seconds outlives the connection that it was taken through. A busy machine
// may need longer.
func TestHoldOutlivesAHalfOpenConnection(t *testing.T) {
	var lost error
	for ttl := 3 * time.Second; ttl < tooLong; ttl *= 3 {
		if lost = outlivesConnection(t, ttl); lost == nil {
			return
		}
	}
	t.Errorf("lost: %v", lost)
}

// outlivesConnection returns the cause of the loss of a hold whose connection dies, or nil when
// the hold was renewed.
func outlivesConnection(t *testing.T, ttl time.Duration) error {
	srv := testserver.SharedRedis(t)
	p := faultproxy.New(t, srv.Addr())
	renewed := make(chan struct{}, 1000)
	locks, err := distlock.New(endlessly("")(t, p.Addr()), &distlock.Options{TTL: ttl, Observer: &distlock.Observer{
		Renewed: func(e distlock.Event) {
			if e.Err == nil {
				renewed <- struct{}{}
			}
		},
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer locks.Close()
	lease, err := locks.Mutex(request("", driver.Exclusive).Name).Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	strand(p)
	select {
	case <-renewed:
		return nil
	case <-lease.Context().Done():
		return context.Cause(lease.Context())
	}
}
