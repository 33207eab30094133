package rueidislock

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/backend/redislock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
)

// usersClient is a client of the program's, and how the program closes it.
type usersClient struct {
	name  string
	open  func(t *testing.T) *redislock.Backend
	close func()
}

func usersClients(t *testing.T) []*usersClient {
	srv, g := testserver.SharedRedis(t), testserver.SharedRedisCluster(t)
	var all []*usersClient
	rueidisClient := func(name string, o rueidis.ClientOption) {
		u := &usersClient{name: name}
		u.open = func(t *testing.T) *redislock.Backend {
			c := newClient(t, o, nil)
			u.close = c.Close
			return must.Get(New(c, nil))(t)
		}
		all = append(all, u)
	}
	goRedis := func(name string, open func() redis.UniversalClient) {
		u := &usersClient{name: name}
		u.open = func(t *testing.T) *redislock.Backend {
			c := open()
			u.close = func() { c.Close() }
			return must.Get(redislock.NewGoRedis(c, nil))(t)
		}
		all = append(all, u)
	}
	rueidisClient("rueidis", single(srv.Addr()))
	rueidisClient("rueidis, a cluster", cluster(g))
	goRedis("go-redis", func() redis.UniversalClient { return redis.NewClient(&redis.Options{Addr: srv.Addr()}) })
	goRedis("go-redis, a cluster", func() redis.UniversalClient { return redis.NewClusterClient(&redis.ClusterOptions{Addrs: g.Addrs()}) })
	return all
}

// Waits on a client that the program has closed end, with an error that says so.
func TestClosedClientEndsWaits(t *testing.T) {
	for _, u := range usersClients(t) {
		t.Run(u.name, func(t *testing.T) {
			t.Parallel()
			locks := must.Get(distlock.New(u.open(t), &distlock.Options{TTL: 3 * time.Second}))(t)
			defer locks.Close()
			m := locks.Mutex(driver.NewOwner())
			must.Get(m.Lock(t.Context()))(t)
			waited := make(chan error, 1)
			go func() {
				_, err := m.Lock(t.Context())
				waited <- err
			}()
			u.close()
			_, err := locks.Mutex(driver.NewOwner()).Lock(t.Context())
			if !errors.Is(err, distlock.ErrClosed) || !strings.Contains(err.Error(), "closed the Redis client") {
				t.Errorf("a new lock: %v", err)
			}
			err = locks.Election(driver.NewOwner()).Lead(t.Context(), func(context.Context) error { return nil })
			if !errors.Is(err, distlock.ErrClosed) {
				t.Errorf("an election: %v", err)
			}
			if err := <-waited; !errors.Is(err, distlock.ErrClosed) {
				t.Errorf("a wait: %v", err)
			}
		})
	}
}

// Blocking commands of the program may have all connections of the pool. Calls that need one say so, those that need none work, and Close
// waits for none.
func TestPoolInUse(t *testing.T) {
	srv := testserver.Redis(t)
	for _, opts := range []redislock.Options{{}, {Scripts: redislock.ScriptsOff}} {
		o := single(srv.Addr())
		o.BlockingPoolSize = 1
		c := newClient(t, o, nil)
		b := must.Get(New(c, &opts))(t)
		if opts.Scripts == "" {
			warm(t, b, driver.Exclusive)
		}
		busy, cancel := context.WithCancel(t.Context())
		blocked := make(chan struct{})
		go func() {
			c.Do(busy, c.B().Blpop().Key("never").Timeout(0).Build())
			close(blocked)
		}()
		for end := time.Now().Add(time.Minute); !strings.Contains(must.Get(srv.Do("INFO", "clients"))(t).(string), "blocked_clients:1"); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("BLPOP does not block")
			}
		}
		h := request("", driver.Exclusive).Hold
		err := b.Release(t.Context(), h)
		if opts.Scripts == "" && !errors.Is(err, driver.ErrLost) || opts.Scripts != "" && (!errors.Is(err, driver.ErrUnsent) || !strings.Contains(err.Error(), "BlockingPoolSize")) {
			t.Errorf("%+v: release: %v", opts, err)
		}
		ctx, stop := context.WithTimeout(t.Context(), 100*time.Millisecond)
		if _, err := b.Watch(ctx, request("", driver.Exclusive)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%+v: watch: %v", opts, err)
		}
		stop()
		b.Close()
		cancel()
		<-blocked
	}
}
