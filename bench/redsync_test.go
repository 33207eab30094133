package bench

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

// openRedsync uses redsync like its README. A delay of 0 means its default, random between 50 and 250
// ms. By default it gives up after 32 attempts. Here it keeps waiting.
func openRedsync(delay time.Duration) func(string, time.Duration) (client, error) {
	return func(addr string, ttl time.Duration) (client, error) {
		c := redis.NewClient(&redis.Options{Addr: addr})
		options := []redsync.Option{redsync.WithExpiry(ttl), redsync.WithTries(math.MaxInt32)}
		if delay > 0 {
			options = append(options, redsync.WithRetryDelay(delay))
		}
		return &redsyncClient{c, redsync.New(goredis.NewPool(c)), options}, nil
	}
}

type redsyncClient struct {
	redis   *redis.Client
	rs      *redsync.Redsync
	options []redsync.Option
}

func (c *redsyncClient) mutex(name string) mutex {
	return redsyncMutex{c.rs.NewMutex(name, c.options...)}
}

func (c *redsyncClient) close() { c.redis.Close() }

type redsyncMutex struct{ *redsync.Mutex }

func (m redsyncMutex) lock(ctx context.Context) error { return m.LockContext(ctx) }

func (m redsyncMutex) unlock() error { return confirmed(m.Unlock()) }

func (m redsyncMutex) extend(ctx context.Context) error { return confirmed(m.ExtendContext(ctx)) }

func confirmed(ok bool, err error) error {
	if err == nil && !ok {
		return errors.New("redsync: not confirmed")
	}
	return err
}
