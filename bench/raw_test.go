package bench

import (
	"context"
	"crypto/rand"
	"errors"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
)

const compareAndDelete = `
if redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return 0`

// openRawRueidis uses only SET NX PX and a compare-and-delete script. A refused client retries at once.
func openRawRueidis(addr string, ttl time.Duration) (client, error) {
	c, err := newRueidis(addr)
	if err != nil {
		return nil, err
	}
	return &rawRueidisClient{c, rueidis.NewLuaScript(compareAndDelete), ttl}, nil
}

func newRueidis(addr string) (rueidis.Client, error) {
	return rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}, DisableCache: true, ForceSingleClient: true})
}

type rawRueidisClient struct {
	redis rueidis.Client
	drop  *rueidis.Lua
	ttl   time.Duration
}

func (c *rawRueidisClient) mutex(name string) mutex { return &rawRueidisMutex{c: c, name: name} }

func (c *rawRueidisClient) close() { c.redis.Close() }

type rawRueidisMutex struct {
	c           *rawRueidisClient
	name, owner string
}

func (m *rawRueidisMutex) lock(ctx context.Context) error {
	m.owner = rand.Text()
	for {
		set := m.c.redis.B().Set().Key(m.name).Value(m.owner).Nx().PxMilliseconds(m.c.ttl.Milliseconds()).Build()
		err := m.c.redis.Do(ctx, set).Error()
		if !rueidis.IsRedisNil(err) {
			return err
		}
	}
}

func (m *rawRueidisMutex) unlock() error {
	return m.c.drop.Exec(context.Background(), m.c.redis, []string{m.name}, []string{m.owner}).Error()
}

// openRawGoRedis does the same through go-redis.
func openRawGoRedis(addr string, ttl time.Duration) (client, error) {
	return &rawGoRedisClient{redis.NewClient(&redis.Options{Addr: addr}), redis.NewScript(compareAndDelete), ttl}, nil
}

type rawGoRedisClient struct {
	redis *redis.Client
	drop  *redis.Script
	ttl   time.Duration
}

func (c *rawGoRedisClient) mutex(name string) mutex { return &rawGoRedisMutex{c: c, name: name} }

func (c *rawGoRedisClient) close() { c.redis.Close() }

type rawGoRedisMutex struct {
	c           *rawGoRedisClient
	name, owner string
}

func (m *rawGoRedisMutex) lock(ctx context.Context) error {
	m.owner = rand.Text()
	args := redis.SetArgs{Mode: "NX", TTL: m.c.ttl}
	for ctx.Err() == nil {
		err := m.c.redis.SetArgs(ctx, m.name, m.owner, args).Err()
		if !errors.Is(err, redis.Nil) {
			return err
		}
	}
	return ctx.Err()
}

func (m *rawGoRedisMutex) unlock() error {
	return m.c.drop.Run(context.Background(), m.c.redis, []string{m.name}, m.owner).Err()
}

// wakeup is the minimum for a hand-off to another process: a release that publishes, a subscriber that
// receives, and a script that takes the lock. It ignores lost messages, and supports one mutex per
// client.
var (
	pubsubLock   = rueidis.NewLuaScript(`return redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2])`)
	pubsubUnlock = rueidis.NewLuaScript(`redis.call('DEL', KEYS[1]) return redis.call('PUBLISH', KEYS[1], '')`)
)

func openWakeup(addr string, ttl time.Duration) (client, error) {
	c, err := newRueidis(addr)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	return &pubsubClient{c, strconv.FormatInt(ttl.Milliseconds(), 10), ctx, cancel}, nil
}

type pubsubClient struct {
	redis  rueidis.Client
	ttl    string
	ctx    context.Context
	cancel context.CancelFunc
}

func (c *pubsubClient) mutex(name string) mutex {
	m := &pubsubMutex{c: c, name: name, notified: make(chan struct{}, 1)}
	armed := make(chan struct{}, 1)
	ctx := rueidis.WithOnSubscriptionHook(c.ctx, func(rueidis.PubSubSubscription) { signal(armed) })
	go c.redis.Receive(ctx, c.redis.B().Subscribe().Channel(name).Build(), func(rueidis.PubSubMessage) { signal(m.notified) })
	select {
	case <-armed:
	case <-time.After(time.Second): // a lost message makes it slow, and the figures show that
	}
	return m
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func (c *pubsubClient) close() {
	c.cancel()
	c.redis.Close()
}

type pubsubMutex struct {
	c        *pubsubClient
	name     string
	notified chan struct{}
}

func (m *pubsubMutex) lock(ctx context.Context) error {
	for {
		err := pubsubLock.Exec(ctx, m.c.redis, []string{m.name}, []string{"1", m.c.ttl}).Error()
		if !rueidis.IsRedisNil(err) {
			return err
		}
		select {
		case <-m.notified:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (m *pubsubMutex) unlock() error {
	return pubsubUnlock.Exec(context.Background(), m.c.redis, []string{m.name}, nil).Error()
}
