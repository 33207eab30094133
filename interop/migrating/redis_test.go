package migrating

import (
	"context"
	"strings"
	"testing"
	"time"

	bsm "github.com/bsm/redislock"
	"github.com/distlock/distlock"
	_ "github.com/distlock/distlock/backend/quorum"
	"github.com/distlock/distlock/backend/redislock"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
	"github.com/go-redsync/redsync/v4"
	redsyncredis "github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

func beforeWithRedsync(client *redis.Client) version {
	return func(ctx context.Context, work func(context.Context) error) error {
		locks := redsync.New(goredis.NewPool(client))
		mutex := locks.NewMutex("job", redsync.WithExpiry(time.Minute))
		if err := mutex.LockContext(ctx); err != nil {
			return err
		}
		defer mutex.UnlockContext(context.WithoutCancel(ctx))
		return work(ctx)
	}
}

func beforeWithRedislock(client *redis.Client) version {
	return func(ctx context.Context, work func(context.Context) error) error {
		lock, err := bsm.Obtain(ctx, client, "job", time.Minute, &bsm.Options{
			RetryStrategy: bsm.LinearBackoff(100 * time.Millisecond),
		})
		if err != nil {
			return err
		}
		defer lock.Release(context.WithoutCancel(ctx))
		return work(ctx)
	}
}

func after(client *redis.Client) version {
	return func(ctx context.Context, work func(context.Context) error) error {
		backend, err := redislock.NewGoRedis(client, nil) // your client, which stays yours
		if err != nil {
			return err
		}
		locks, err := distlock.New(backend, nil) // one for the whole program
		if err != nil {
			return err
		}
		defer locks.Close()
		return locks.Mutex("job").Do(ctx, work)
	}
}

func newRedis(t *testing.T) *redis.Client {
	client := redis.NewClient(&redis.Options{Addr: testserver.SharedRedis(t).Addr()})
	t.Cleanup(func() { client.Close() })
	return client
}

func TestFromRedsync(t *testing.T) {
	client := newRedis(t)
	exclude(t, beforeWithRedsync(client), after(client))
}

func TestFromRedislock(t *testing.T) {
	client := newRedis(t)
	exclude(t, beforeWithRedislock(client), after(client))
}

// redsync on several servers and Redlock are one algorithm, and have the same key on each server.
func TestFromRedsyncOnSeveralServers(t *testing.T) {
	var pools []redsyncredis.Pool
	var addrs []string
	for range 3 {
		server := testserver.Redis(t)
		client := redis.NewClient(&redis.Options{Addr: server.Addr()})
		t.Cleanup(func() { client.Close() })
		pools, addrs = append(pools, goredis.NewPool(client)), append(addrs, server.Addr())
	}
	before := func(ctx context.Context, work func(context.Context) error) error {
		mutex := redsync.New(pools...).NewMutex("job")
		if err := mutex.LockContext(ctx); err != nil {
			return err
		}
		defer mutex.UnlockContext(context.WithoutCancel(ctx))
		return work(ctx)
	}
	exclude(t, before, func(ctx context.Context, work func(context.Context) error) error {
		locks, err := distlock.Open(ctx, "quorum+redis://"+strings.Join(addrs, ","), nil)
		if err != nil {
			return err
		}
		defer locks.Close()
		return locks.Mutex("job").Do(ctx, work)
	})
}

// both holds the old lock and the new one, where they do not exclude each other.
func both(ctx context.Context, old version, locks *distlock.Client, work func(context.Context) error) error {
	return old(ctx, func(ctx context.Context) error { // the old lock first, in every program
		return locks.Mutex("new:job").Do(ctx, work)
	})
}

func TestHoldingBoth(t *testing.T) {
	client := newRedis(t)
	locks := must.Get(distlock.Open(t.Context(), testserver.SharedRedis(t).URL(), nil))(t)
	defer locks.Close()
	transitional := func(ctx context.Context, work func(context.Context) error) error {
		return both(ctx, beforeWithRedsync(client), locks, work)
	}
	last := func(ctx context.Context, work func(context.Context) error) error {
		return locks.Mutex("new:job").Do(ctx, work)
	}
	exclude(t, beforeWithRedsync(client), transitional)
	exclude(t, transitional, last)
}

func TestFromRedisson(t *testing.T) {
	url := testserver.SharedRedis(t).URL() + "?layout=redisson"
	expect.OK(t, afterRedisson(t.Context(), url, func(ctx context.Context) error { return context.Cause(ctx) }))
}

func afterRedisson(ctx context.Context, url string, work func(context.Context) error) error {
	locks, err := distlock.Open(ctx, url, nil) // redis://localhost:6379?layout=redisson
	if err != nil {
		return err
	}
	defer locks.Close()
	return locks.Mutex("job").Do(ctx, work)
}
