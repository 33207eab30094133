package redislock

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"

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
	to, err := readURL(u)
	if err != nil {
		t.Fatal(err)
	}
	to.server.Dialer = s.dial
	b, err := newBackend(to.connect(), &opts)
	return opened(t, b, err)
}}, {"go-redis", func(t testing.TB, s *service, opts Options) *Backend {
	c := redis.NewClient(&redis.Options{Dialer: s.dial, MaintNotificationsConfig: noUpgrades})
	b, err := NewGoRedis(c, &opts)
	return closing(t, opened(t, b, err), func() { c.Close() })
}}}

// A failover behind one address: the connection to the old master is given up since it
// refuses one caller's command, while it watches a key for another caller. At the new
// master that key is a successor's lock, and the change must not be made there.
func TestScriptlessConnectionGivenUpInBetween(t *testing.T) {
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

				f := b.scriptless.of(0, "")
				goOn := holdTrip(f, b, func() { demote(t, old); s.now.Store(now) })
				results := make(chan error)
				go func() {
					mine.TTL *= 2
					if op == "renew" {
						results <- b.Renew(t.Context(), []driver.Hold{mine.Hold})[0]
						return
					}
					results <- b.Release(t.Context(), mine.Hold)
				}()
				refusedThere := make(chan error)
				go func() {
					_, err := b.Acquire(t.Context(), request("", driver.Exclusive))
					refusedThere <- err
				}()
				eventually(t, "both are to go on one trip", func() bool {
					f.mu.Lock()
					defer f.mu.Unlock()
					return len(f.waiting) == 2
				})
				goOn()
				if err := <-results; err == nil {
					t.Errorf("%s of a hold that the new master doesn't know: no error", op)
				}
				<-refusedThere
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
	now atomic.Value
}

func (r *replacing) At(context.Context, string) (redisconn.Server, error) {
	return r.now.Load().(redisconn.Server), nil
}

// Callers without a pause do not keep the connection to a master that was replaced, and that
// still answers.
func TestScriptlessLeavesAReplacedMaster(t *testing.T) {
	old, now := testserver.Redis(t), testserver.Redis(t)
	b, other := openOwn(t, old.Addr(), Options{Scripts: ScriptsOff}), openOwn(t, now.Addr(), Options{})
	r := &replacing{Client: b.client}
	r.now.Store(serverOf(b))
	b.client = r
	f := b.scriptless.of(0, "")
	late, done := request("", driver.Exclusive), make(chan error, 2)
	board := func(r driver.Request) {
		go func() {
			_, err := b.Acquire(t.Context(), r)
			done <- err
		}()
		eventually(t, "the next trip has something to take", func() bool {
			f.mu.Lock()
			defer f.mu.Unlock()
			return len(f.waiting) == 1
		})
	}
	goOn := holdTrip(f, b, func() {
		board(late)
		r.now.Store(serverOf(other))
	})
	board(request("", driver.Exclusive))
	goOn()
	for range 2 {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	if n := raw(t, now.Addr()).Exists(t.Context(), late.Name).Val(); n != 1 {
		t.Error("the lock was taken at the master before")
	}
}

// holdTrip begins a trip that does not end before the function is called; the next one
// begins with next.
func holdTrip(f *ferry, b *Backend, next func()) (goOn func()) {
	under, on, send := make(chan struct{}), make(chan struct{}), f.send
	trips := 0
	f.send = func(ctx context.Context, commands [][]string) []redisconn.Answer {
		switch trips++; trips {
		case 1:
			close(under)
			<-on
		case 2:
			next()
		}
		return send(ctx, commands)
	}
	go b.Acquire(context.Background(), request("", driver.Exclusive))
	<-under
	return func() { close(on) }
}

func demote(t *testing.T, s *testserver.RedisServer) {
	t.Helper()
	if _, err := s.Do("REPLICAOF", "127.0.0.1", "1"); err != nil {
		t.Fatal(err)
	}
}
