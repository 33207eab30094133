package bench

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/go-zookeeper/zk"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
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

// openRueidislock uses rueidislock as its README recommends for a single server of this version: a
// majority of one, and tracking without loop.
func openRueidislock(addr string, ttl time.Duration) (client, error) {
	l, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption:   rueidis.ClientOption{InitAddress: []string{addr}},
		KeyValidity:    ttl,
		KeyMajority:    1,
		NoLoopTracking: true,
	})
	if err != nil {
		return nil, err
	}
	return rueidislockClient{l}, nil
}

type rueidislockClient struct{ rueidislock.Locker }

func (c rueidislockClient) mutex(name string) mutex {
	return &rueidislockMutex{locker: c.Locker, name: name}
}

func (c rueidislockClient) close() { c.Close() }

type rueidislockMutex struct {
	locker rueidislock.Locker
	name   string
	cancel context.CancelFunc
}

func (m *rueidislockMutex) lock(ctx context.Context) (err error) {
	_, m.cancel, err = m.locker.WithContext(ctx, m.name)
	return err
}

// unlock returns when the key is deleted.
func (m *rueidislockMutex) unlock() error {
	m.cancel()
	return nil
}

var openToAll = zk.WorldACL(zk.PermAll)

// newZooKeeperClient returns a client that logs nothing.
func newZooKeeperClient(addr string, timeout time.Duration) (*zk.Conn, error) {
	c, _, err := zk.Connect([]string{addr}, timeout, zk.WithLogger(silent{}), zk.WithEventCallback(func(zk.Event) {}))
	return c, err
}

type silent struct{}

func (silent) Printf(string, ...any) {}

// createOnce creates a permanent node, unless it exists.
func createOnce(c *zk.Conn, path string) error {
	_, err := c.Create(path, nil, 0, openToAll)
	if errors.Is(err, zk.ErrNodeExists) {
		return nil
	}
	return err
}

// openZkLock uses go-zookeeper's Lock, with one session for all locks of the process. It supports no
// context: a waiter waits until it has the lock.
func openZkLock(addr string, ttl time.Duration) (client, error) {
	c, err := newZooKeeperClient(addr, ttl)
	return zkClient{c, func(name string) mutex { return zkLock{zk.NewLock(c, "/bench-locks/"+name, openToAll)} }}, err
}

// openRawZooKeeper creates and deletes ephemeral nodes. A refused client retries at once.
func openRawZooKeeper(addr string, ttl time.Duration) (client, error) {
	c, err := newZooKeeperClient(addr, ttl)
	if err != nil {
		return nil, err
	}
	return zkClient{c, func(name string) mutex { return rawZkMutex{c, "/bench-raw/" + name} }}, createOnce(c, "/bench-raw")
}

type zkClient struct {
	*zk.Conn
	newMutex func(name string) mutex
}

func (c zkClient) mutex(name string) mutex { return c.newMutex(name) }
func (c zkClient) close()                  { c.Close() }

type zkLock struct{ *zk.Lock }

func (l zkLock) lock(context.Context) error { return l.Lock.Lock() }
func (l zkLock) unlock() error              { return l.Unlock() }

type rawZkMutex struct {
	zk   *zk.Conn
	path string
}

func (m rawZkMutex) lock(ctx context.Context) error {
	for ctx.Err() == nil {
		_, err := m.zk.Create(m.path, nil, zk.FlagEphemeral, openToAll)
		if !errors.Is(err, zk.ErrNodeExists) {
			return err
		}
	}
	return ctx.Err()
}

func (m rawZkMutex) unlock() error { return m.zk.Delete(m.path, -1) }
