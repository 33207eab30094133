package bench

import (
	"context"
	"time"

	"github.com/bsm/redislock"
	"github.com/redis/go-redis/v9"
)

// openRedislock uses bsm/redislock like its examples, which wait 100 ms between attempts. By default it
// does not wait at all.
func openRedislock(delay time.Duration) func(string, time.Duration) (client, error) {
	return func(addr string, ttl time.Duration) (client, error) {
		c := redis.NewClient(&redis.Options{Addr: addr})
		options := &redislock.Options{RetryStrategy: redislock.LinearBackoff(delay)}
		return &redislockClient{c, redislock.New(c), ttl, options}, nil
	}
}

type redislockClient struct {
	redis   *redis.Client
	locker  *redislock.Client
	ttl     time.Duration
	options *redislock.Options
}

func (c *redislockClient) mutex(name string) mutex { return &redislockMutex{c: c, name: name} }

func (c *redislockClient) close() { c.redis.Close() }

type redislockMutex struct {
	c    *redislockClient
	name string
	held *redislock.Lock
}

func (m *redislockMutex) lock(ctx context.Context) (err error) {
	m.held, err = m.c.locker.Obtain(ctx, m.name, m.c.ttl, m.c.options)
	return err
}

func (m *redislockMutex) unlock() error { return m.held.Release(context.Background()) }

func (m *redislockMutex) extend(ctx context.Context) error {
	return m.held.Refresh(ctx, m.c.ttl, nil)
}
