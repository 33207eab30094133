package faultfuzz

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/distlock/distlock/driver"
)

func lossyRedis(t *testing.T, change func(driver.Backend, *goredis.Client) driver.Backend) Case {
	c := redis("")(t)
	c.Rate = 0.2
	open := c.Open
	c.Open = func(ctx context.Context, addrs []string) (driver.Backend, error) {
		b, err := open(ctx, addrs)
		if err != nil {
			return nil, err
		}
		r := goredis.NewClient(&goredis.Options{Addr: addrs[0], MaxRetries: -1})
		return client{change(b, r), r}, nil
	}
	return c
}

// client is a backend that closes a client too.
type client struct {
	driver.Backend
	c *goredis.Client
}

func (b client) Close() error { return errors.Join(b.Backend.Close(), b.c.Close()) }

// setter is a backend whose renewals set a life, also to less than was left.
type setter struct {
	driver.Backend
	c *goredis.Client
}

var setLife = goredis.NewScript(`
local held = string.find(redis.call('GET', KEYS[1]) or '', ARGV[1], 1, true) == 1
return held and redis.call('PEXPIRE', KEYS[1], ARGV[2]) or 0`)

func (b setter) Renew(ctx context.Context, holds []driver.Hold) []error {
	errs := make([]error, len(holds))
	for i, h := range holds {
		n, err := setLife.Run(ctx, b.c, []string{h.Name}, h.Owner, h.TTL.Milliseconds()).Int()
		if errs[i] = err; err == nil && n == 0 {
			errs[i] = driver.ErrLost
		}
	}
	return errs
}

// rememberer never renews for less than is left, as far as it knows itself: its server
// knows nothing of that, so that only a late renewal does harm.
type rememberer struct {
	setter
	mu   sync.Mutex
	ends map[string]time.Time
}

func (b *rememberer) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	b.mu.Lock()
	if end := time.Now().Add(r.TTL); end.After(b.ends[r.Owner]) {
		b.ends[r.Owner] = end
	}
	b.mu.Unlock()
	return b.Backend.Acquire(ctx, r)
}

func (b *rememberer) Renew(ctx context.Context, holds []driver.Hold) []error {
	var all []driver.Hold
	b.mu.Lock()
	for _, h := range holds {
		now := time.Now()
		h.TTL = max(h.TTL, b.ends[h.Owner].Sub(now)+time.Millisecond)
		b.ends[h.Owner] = now.Add(h.TTL)
		all = append(all, h)
	}
	b.mu.Unlock()
	return b.setter.Renew(ctx, all)
}

// yes says that everything is renewed, though it may be lost.
type yes struct{ driver.Backend }

func (b yes) Renew(ctx context.Context, holds []driver.Hold) []error {
	b.Backend.Renew(ctx, holds)
	return make([]error, len(holds))
}

// content is a backend that releases what others have got in the meantime, with success.
type content struct{ driver.Backend }

func (b content) Release(ctx context.Context, h driver.Hold) error {
	if err := b.Backend.Release(ctx, h); !driver.Final(err) {
		return nil
	}
	return driver.ErrClosed
}

// old is a backend with one fence for all.
type old struct{ driver.Backend }

func (b old) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	g, err := b.Backend.Acquire(ctx, r)
	g.Fence = 7
	return g, err
}

// The test with late requests catches mutants.
func TestLongMistakesAreCaught(t *testing.T) {
	for name, change := range map[string]func(driver.Backend, *goredis.Client) driver.Backend{
		"a renewal sets a life":                 func(b driver.Backend, c *goredis.Client) driver.Backend { return setter{b, c} },
		"a renewal without an answer is a yes":  func(b driver.Backend, _ *goredis.Client) driver.Backend { return yes{b} },
		"a release that found nothing is a yes": func(b driver.Backend, _ *goredis.Client) driver.Backend { return content{b} },
		"fences do not increase":                func(b driver.Backend, _ *goredis.Client) driver.Backend { return old{b} },
		"a late renewal sets a life": func(b driver.Backend, c *goredis.Client) driver.Backend {
			return &rememberer{setter: setter{b, c}, ends: map[string]time.Time{}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			mustBeCaught(t, change)
		})
	}
}

func mustBeCaught(t *testing.T, change func(driver.Backend, *goredis.Client) driver.Backend) {
	t.Helper()
	r := Play(t, lossyRedis(t, change), 1, 100_000, 2*time.Second)
	if len(r.Faults) == 0 {
		t.Fatalf("not caught: %s", r)
	}
	t.Log(r.Faults[0])
}
