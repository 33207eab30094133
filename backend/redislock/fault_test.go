package redislock

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/faultproxy"
	"github.com/distlock/distlock/internal/testkit/locktest"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// unknown fails the test unless err is neither nil nor a fact.
func unknown(t testing.TB, what string, err error) {
	t.Helper()
	if err == nil || driver.Final(err) || errors.Is(err, driver.ErrLost) || errors.Is(err, driver.ErrHeld) {
		t.Errorf("%s: %v, want an unknown outcome", what, err)
	}
}

// warm lets the server know the scripts, so that the next command is the one that
// matters.
func warm(t testing.TB, b *Backend, mode driver.Mode) {
	r := request("", mode)
	acquire(t, b, r)
	b.Renew(t.Context(), []driver.Hold{r.Hold})
	release(t, b, r)
}

// The server executes a command, and the answer is lost. The outcome is unknown to the caller, the
// client library must not resend the command, and a retry is harmless.
func TestLostAnswers(t *testing.T) {
	srv := testserver.SharedRedis(t)
	eachOpener(t, func(t *testing.T, o opener) {
		for _, layout := range []Layout{String, Redisson} {
			p := faultproxy.New(t, srv.Addr())
			b, ctx := o.open(t, p.Addr(), Options{Layout: layout}), t.Context()
			for _, mode := range []driver.Mode{driver.Exclusive, driver.Write, driver.Read, driver.Counted} {
				warm(t, b, mode)
				r := request("", mode)
				lose := func() { p.LoseReply(r.Name) }

				lose()
				_, err := b.Acquire(ctx, r)
				unknown(t, "acquire", err)
				first := acquire(t, b, r)
				if again := acquire(t, b, r); again.Fence <= first.Fence {
					t.Errorf("fence %d after %d", again.Fence, first.Fence)
				}
				lose()
				unknown(t, "renew", b.Renew(ctx, []driver.Hold{r.Hold})[0])
				if err := b.Renew(ctx, []driver.Hold{r.Hold})[0]; err != nil {
					t.Errorf("%s %v: renewed again: %v", layout, mode, err)
				}
				lose()
				unknown(t, "release", b.Release(ctx, r.Hold))
				if err := b.Release(ctx, r.Hold); !errors.Is(err, driver.ErrLost) {
					t.Errorf("%s %v: released again: %v", layout, mode, err)
				}
				// Nothing was counted twice: the lock is free for another Owner.
				acquire(t, b, request(r.Name, mode))
			}
			if n := p.Lost(); n != 12 {
				t.Errorf("%d answers were lost, want 12", n)
			}
		}
	})
}

func TestStalledServer(t *testing.T) {
	each(t, patientOpeners, func(t *testing.T, o opener) {
		srv := testserver.Redis(t)
		b := o.open(t, srv.Addr(), Options{})
		warm(t, b, driver.Exclusive)
		locktest.StalledServer(t, b, srv, anyRequest)
	})
}

func anyRequest() driver.Request { return request("", driver.Exclusive) }

func TestStalledServerAndOthers(t *testing.T) {
	eachOpener(t, func(t *testing.T, o opener) {
		srv := testserver.Redis(t)
		b := o.open(t, srv.Addr(), Options{})
		warm(t, b, driver.Exclusive)
		locktest.StalledServerAndOthers(t, b, srv, anyRequest)
	})
}

func TestServerForgotTheScripts(t *testing.T) {
	srv := testserver.Redis(t)
	eachOpener(t, func(t *testing.T, o opener) {
		b := o.open(t, srv.Addr(), Options{})
		r := request("", driver.Exclusive)
		for range 2 {
			acquire(t, b, r)
			release(t, b, r)
			raw(t, srv.Addr()).ScriptFlush(t.Context())
		}
	})
}

// The network drops everything: the URL's timeout ends calls that have no other deadline.
func TestTimeout(t *testing.T) {
	srv := testserver.SharedRedis(t)
	p := faultproxy.New(t, srv.Addr())
	b, err := Open(t.Context(), "redis://"+p.Addr()+"?timeout=500ms")
	b = opened(t, b, err)
	answered := func() bool { // within 500 ms, which a busy machine may miss
		_, err := b.Acquire(t.Context(), request("", driver.Exclusive))
		return err == nil
	}
	eventually(t, "an answer", answered)
	p.Silence()
	_, err = b.Acquire(t.Context(), request("", driver.Exclusive))
	unknown(t, "acquire", err)
	p.Pass()
	eventually(t, "an answer again", answered)
}

// A connection that was closed while it was idle is noticed before it is used.
func TestIdleConnectionWasClosed(t *testing.T) {
	srv := testserver.SharedRedis(t)
	p := faultproxy.New(t, srv.Addr())
	b := openOwn(t, p.Addr(), Options{})
	warm(t, b, driver.Exclusive)
	p.Cut()
	acquire(t, b, request("", driver.Exclusive))
}

func TestManyGoroutinesShareAConnection(t *testing.T) {
	srv := testserver.SharedRedis(t)
	eachOpener(t, func(t *testing.T, o opener) {
		b := o.open(t, srv.Addr(), Options{})
		var wg sync.WaitGroup
		for range 64 {
			wg.Go(func() {
				for range 20 {
					r := request("", driver.Exclusive)
					if _, err := b.Acquire(t.Context(), r); err != nil {
						t.Error(err)
					}
					if err := b.Release(t.Context(), r.Hold); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
	})
}

// Callers come and give up at random: none hangs, and none gets another's answer.
func TestCallersGiveUpAtRandom(t *testing.T) {
	srv := testserver.SharedRedis(t)
	b := openOwn(t, srv.Addr(), Options{})
	var wg sync.WaitGroup
	for g := range 32 {
		wg.Go(func() {
			for i := range 60 {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(g*i%17)*30*time.Microsecond)
				r := request("", driver.Exclusive)
				_, err := b.Acquire(ctx, r)
				cancel()
				if err != nil && !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("acquire: %v", err)
				}
				lost := b.Release(t.Context(), r.Hold)
				if lost != nil && !errors.Is(lost, driver.ErrLost) || err == nil && lost != nil {
					t.Errorf("acquire: %v, then release: %v", err, lost)
				}
			}
		})
	}
	wg.Wait()
}

// countingStorage counts attempts.
type countingStorage struct {
	storage
	attempts atomic.Int64
}

func (c *countingStorage) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	c.attempts.Add(1)
	return c.storage.Acquire(ctx, r)
}

func TestCloseEndsWhatIsOnItsWay(t *testing.T) {
	srv := testserver.Redis(t)
	b := openOwn(t, srv.Addr(), Options{})
	warm(t, b, driver.Exclusive)
	c := &countingStorage{storage: b.storage}
	b.storage = c
	srv.Pause()
	answers := make(chan error)
	for range 3 {
		go func() {
			_, err := b.Acquire(t.Context(), request("", driver.Exclusive))
			answers <- err
		}()
	}
	eventually(t, "all are on their way", func() bool { return c.attempts.Load() == 3 })
	b.Close()
	for range 3 {
		unknown(t, "acquire", <-answers)
	}
	srv.Resume()
	refused(t, b, request("", driver.Exclusive), driver.ErrClosed)
}
