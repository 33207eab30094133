package redislock

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/distlock/distlock/backend/redislock/internal/redisconn"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/testserver"
	"github.com/redis/go-redis/v9"
)

// service is one address with one of several servers behind it, as a Kubernetes service
// has: it decides where new connections go.
type service struct {
	now atomic.Pointer[testserver.RedisServer]
}

func (s *service) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "tcp", s.now.Load().Addr())
}

var serviceOpeners = []struct {
	name string
	open func(t testing.TB, s *service, opts Options) *Backend
}{{"url", func(t testing.TB, s *service, opts Options) *Backend {
	u, _ := driver.ParseURL("redis://service")
	to, err := parseURL(u)
	if err != nil {
		t.Fatal(err)
	}
	to.server.Dialer = s.dial
	b, err := NewConn(to.connect(), &opts)
	return opened(t, b, err)
}}, {"go-redis", func(t testing.TB, s *service, opts Options) *Backend {
	c := redis.NewClient(&redis.Options{Dialer: s.dial, MaintNotificationsConfig: noUpgrades})
	b, err := NewGoRedis(c, &opts)
	return closing(t, opened(t, b, err), func() { c.Close() })
}}}

// A failover behind one address, between the look at a key and the change. At the new
// master that key is a successor's lock, and the change must not be made there.
func TestScriptlessFailoverInBetween(t *testing.T) {
	for _, o := range serviceOpeners {
		for _, op := range []string{"release", "renew"} {
			t.Run(o.name+"/"+op, func(t *testing.T) {
				t.Parallel()
				old, now := testserver.Redis(t), testserver.Redis(t)
				var s service
				s.now.Store(old)
				b := o.open(t, &s, Options{Scripts: ScriptsOff})
				mine := request("", driver.Exclusive)
				acquire(t, b, mine)
				successor := request(mine.Name, driver.Exclusive)
				acquire(t, openOwn(t, now.Addr(), Options{Scripts: ScriptsOff}), successor)
				before := raw(t, now.Addr()).PExpireTime(t.Context(), mine.Name).Val()

				meddleBetween(b, func() { demote(t, old); s.now.Store(now) })
				var err error
				if mine.TTL *= 2; op == "renew" {
					err = b.Renew(t.Context(), []driver.Hold{mine.Hold})[0]
				} else {
					err = b.Release(t.Context(), mine.Hold)
				}
				if err == nil {
					t.Errorf("%s of a hold that the new master doesn't know: no error", op)
				}
				c := raw(t, now.Addr())
				if value := c.Get(t.Context(), mine.Name).Val(); !ownedBy(value, successor.Owner) {
					t.Errorf("the successor's lock is %q", value)
				}
				if after := c.PExpireTime(t.Context(), mine.Name).Val(); after != before {
					t.Errorf("the successor's lock ends at %v, and ended at %v", after, before)
				}
				eventually(t, "the loss is found out", func() bool {
					return errors.Is(b.Release(t.Context(), mine.Hold), driver.ErrLost)
				})
			})
		}
	}
}

// replacing is a client that is told which server is the master.
type replacing struct {
	redisconn.Client
	now redisconn.Server
}

func (r *replacing) At(context.Context, string) (redisconn.Server, error) { return r.now, nil }

// A master that was replaced, and still answers, is left at once.
func TestScriptlessLeavesAReplacedMaster(t *testing.T) {
	old, now := testserver.Redis(t), testserver.Redis(t)
	b, other := openOwn(t, old.Addr(), Options{Scripts: ScriptsOff}), openOwn(t, now.Addr(), Options{})
	r := request("", driver.Exclusive)
	acquire(t, b, r)
	acquire(t, other, r)
	to := &replacing{b.client, serverOf(b)}
	b.client = to
	renewed(t, b, r.Hold)
	to.now = serverOf(other)
	r.TTL = time.Hour
	renewed(t, b, r.Hold)
	if left := raw(t, now.Addr()).PTTL(t.Context(), r.Name).Val(); left < time.Hour/2 {
		t.Errorf("%v are left at the new master, want the renewal there", left)
	}
}

func demote(t *testing.T, s *testserver.RedisServer) {
	t.Helper()
	if _, err := s.Do("REPLICAOF", "127.0.0.1", "1"); err != nil {
		t.Fatal(err)
	}
}
