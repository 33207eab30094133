package redislock

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit"
	"github.com/distlock/distlock/internal/testkit/faultproxy"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
)

// A caller that gives up on a frozen server returns at once, and cuts neither a subscription nor
// anything but its own command, whatever connections were made before.
func TestGivingUpWhileOthersWatch(t *testing.T) {
	srv := testserver.Redis(t)
	b := patientOpeners[0].open(t, srv.Addr(), Options{})
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() { warm(t, b, driver.Exclusive) })
	}
	wg.Wait()
	w := armWatch(t, b, request("x", driver.Exclusive))
	defer w.Close()
	srv.Pause()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := b.Acquire(ctx, request("", driver.Exclusive)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("acquire: %v", err)
	}
	srv.Resume()
	acquire(t, b, request("", driver.Exclusive))
	select {
	case <-w.Ready:
		t.Error("the subscription was cut")
	default:
	}
}

// A release is not executed before the acquire that was given up, however late that
// comes: else a lock would be left without a holder.
func TestAbandonedAcquireLandsBeforeItsRelease(t *testing.T) {
	srv := testserver.SharedRedis(t)
	eachOpener(t, func(t *testing.T, o opener) {
		p := faultproxy.New(t, srv.Addr())
		b := o.open(t, p.Addr(), Options{})
		warm(t, b, driver.Exclusive)
		r, err := request("", driver.Exclusive), error(nil)
		for delay := 300 * time.Millisecond; err == nil; delay *= 2 { // again if this process was as slow
			p.Delay(delay)
			err = givenUp(t, b, r, 50*time.Millisecond)
		}
		unknown(t, "acquire", err)
		p.Delay(0)
		release(t, b, r)
		if v := raw(t, srv.Addr()).Exists(t.Context(), r.Name).Val(); v != 0 {
			t.Error("the lock is held by an owner that was released")
		}
	})
}

func TestCloseWhileTheServerIsFrozen(t *testing.T) {
	srv := testserver.Redis(t)
	b := patientOpeners[0].open(t, srv.Addr(), Options{})
	warm(t, b, driver.Exclusive)
	srv.Pause()
	defer srv.Resume()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := b.Watch(ctx, request("", driver.Exclusive)); err == nil {
		t.Error("a frozen server armed a watch")
	}
	b.Close()
}

// strand silences all existing connections, like a firewall that lost its state. New connections
// work.
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
		c.Close()
		return opened(t, b, err)
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

// A dead connection does not end. All renewals and locks continue on another one.
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

// Commands are ordered for each Owner only. The release of an unanswered acquire waits for the
// outcome of the acquire.
func TestHalfOpenConnectionKeepsAnOwnersOrder(t *testing.T) {
	eachHalfOpen(t, func(t *testing.T, b *Backend, p *faultproxy.Proxy) {
		strand(p)
		r := request("", driver.Exclusive)
		unknown(t, "acquire", givenUp(t, b, r, 200*time.Millisecond))
		other := request(r.Name, driver.Exclusive)
		within(t, "another's acquire", func(ctx context.Context) error {
			_, err := b.Acquire(ctx, other)
			return err
		})
		ctx, cancel := timeout(t, 500*time.Millisecond)
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
	lease := must.Get(locks.Mutex(request("", driver.Exclusive).Name).Lock(t.Context()))(t)
	strand(p)
	select {
	case <-renewed:
		return nil
	case <-lease.Context().Done():
		return context.Cause(lease.Context())
	}
}

// stopped returns a backend whose server has gone down.
func stopped(t *testing.T, o opener, opts Options) *Backend {
	t.Helper()
	srv := testserver.Redis(t)
	b := o.open(t, srv.Addr(), opts)
	warm(t, b, driver.Exclusive)
	srv.Kill()
	return b
}

// An attempt, or a release, that meets refused connections fails with ErrUnsent.
func TestRefusedConnectionsSendNothing(t *testing.T) {
	eachOpener(t, func(t *testing.T, o opener) {
		for what, opts := range map[string]Options{"scripts": {}, "no scripts": {Scripts: ScriptsOff}} {
			t.Run(what, func(t *testing.T) {
				b := stopped(t, o, opts)
				faultproxy.AwaitUnsent(t, b, func() driver.Request { return request("", driver.Exclusive) })
				if err := b.Release(t.Context(), request("", driver.Exclusive).Hold); !errors.Is(err, driver.ErrUnsent) {
					t.Errorf("release: %v", err)
				}
			})
		}
	})
}

// Attempts at a server that is down leave no goroutines behind.
func TestManyTriesAtADeadServer(t *testing.T) { tryAtADeadServer(t, 1000) }

func TestLongManyTriesAtADeadServer(t *testing.T) { tryAtADeadServer(t, 10_000) }

func tryAtADeadServer(t *testing.T, tries int) {
	b := stopped(t, opener{"url", openOwn}, Options{})
	c := must.Get(distlock.New(b, nil))(t)
	before, most := testkit.Goroutines(), 0
	for i := range tries {
		if _, err := c.Mutex(fmt.Sprint(i)).TryLock(t.Context()); !errors.Is(err, distlock.ErrUnavailable) {
			t.Fatalf("try %d: %v", i, err)
		}
		most = max(most, testkit.Goroutines()-before)
	}
	if most > 100 {
		t.Errorf("%d goroutines", most)
	}
	// The first tries may have met the connection that was just lost.
	if err := c.Close(); err != nil {
		t.Logf("Close: %v", err)
	}
}

// logLines collects the log of go-redis for all clients in this process.
type logLines struct {
	mu    sync.Mutex
	lines []string
}

func (h *logLines) Printf(_ context.Context, format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lines = append(h.lines, fmt.Sprintf(format, args...))
}

func (h *logLines) about(s string) (lines []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, l := range h.lines {
		if strings.Contains(l, s) {
			lines = append(lines, l)
		}
	}
	return lines
}

// A server that is gone is reported by errors. The log of go-redis belongs to the user and has no
// lines about our clients.
func TestGoneServerIsNotLogged(t *testing.T) {
	log := &logLines{}
	redis.SetLogger(log)
	defer logging.Enable()
	for _, o := range []Options{{}, {Scripts: ScriptsOff}} {
		srv := testserver.Redis(t)
		b := openOwn(t, srv.Addr(), o)
		r := request("", driver.Exclusive)
		acquire(t, b, r)
		w := must.Get(b.Watch(t.Context(), r))(t)
		srv.Kill()
		for range 5 {
			if _, err := b.Acquire(t.Context(), request("", driver.Exclusive)); err == nil || driver.Final(err) {
				t.Errorf("acquire: %v", err)
			}
			if err := b.Renew(t.Context(), []driver.Hold{r.Hold})[0]; err == nil || errors.Is(err, driver.ErrLost) {
				t.Errorf("renew: %v", err)
			}
		}
		_, err := b.Acquire(t.Context(), request("", driver.Exclusive))
		if !errors.Is(err, driver.ErrUnsent) || !strings.Contains(fmt.Sprint(err), "refused") {
			t.Errorf("acquire: %v, want a refused connection, and nothing sent", err)
		}
		w.Close()
		b.Close()
		if lines := log.about(srv.Addr()); len(lines) > 0 {
			t.Errorf("%d lines are logged, such as %q", len(lines), lines[0])
		}
	}
}
