package strings

import (
	"context"
	"crypto/rand"
	"errors"
	"math"
	"os"
	"testing"
	"time"

	"github.com/bsm/redislock"
	"github.com/distlock/distlock"
	ours "github.com/distlock/distlock/backend/redislock"
	"github.com/distlock/distlock/internal/testkit/testserver"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

func TestMain(m *testing.M) { os.Exit(testserver.Run(m)) }

// side is a client of one of the libraries. Locks are named as distlock's are.
type side interface {
	// try makes one attempt; errBusy: somebody else holds the lock.
	try(ctx context.Context, name string, ttl time.Duration) (held, error)
	// lock waits as the library does.
	lock(ctx context.Context, name string, ttl time.Duration) (held, error)
}

// held is a lock that a side got. errNotMine: it is not, or not any more.
type held interface {
	unlock(ctx context.Context) error
	extend(ctx context.Context, ttl time.Duration) error
}

var (
	errBusy    = errors.New("somebody else holds it")
	errNotMine = errors.New("not mine")
)

// prefix is what all put before a name: the peers' users write it out, distlock has an
// option.
const prefix = "app:lock:"

// retry is how long a peer waits between two attempts.
const retry = 5 * time.Millisecond

// peers are the libraries that distlock shares locks with.
var peers = map[string]func(t *testing.T) side{
	"redsync":   newRedsync,
	"redislock": newRedislock,
	"redis-py":  newPython,
}

func eachPeer(t *testing.T, test func(t *testing.T, peer func(t *testing.T) side)) {
	for name, peer := range peers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, peer)
		})
	}
}

func newName() string { return "test:" + rand.Text() }

func newRedis(t *testing.T) *redis.Client {
	c := redis.NewClient(&redis.Options{Addr: testserver.SharedRedis(t).Addr()})
	t.Cleanup(func() { c.Close() })
	return c
}

// distlockSide is distlock.
type distlockSide struct{ c *distlock.Client }

func newDistlock(t *testing.T) side { return openDistlock(t, prefix) }

func openDistlock(t *testing.T, prefix string) distlockSide {
	t.Helper()
	b, err := ours.Open(t.Context(), testserver.SharedRedis(t).URL()+"?prefix="+prefix)
	if err != nil {
		t.Fatal(err)
	}
	c, err := distlock.New(b, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return distlockSide{c}
}

func (s distlockSide) try(ctx context.Context, name string, ttl time.Duration) (held, error) {
	l, err := s.c.Mutex(name, distlock.WithTTL(ttl)).TryLock(ctx)
	if errors.Is(err, distlock.ErrHeld) {
		err = errBusy
	}
	return lease{l}, err
}

func (s distlockSide) lock(ctx context.Context, name string, ttl time.Duration) (held, error) {
	l, err := s.c.Mutex(name, distlock.WithTTL(ttl)).Lock(ctx)
	return lease{l}, err
}

type lease struct{ *distlock.Lease }

func (l lease) unlock(ctx context.Context) error { return notMine(l.Unlock(ctx), distlock.ErrLost) }

func (l lease) extend(ctx context.Context, ttl time.Duration) error {
	return notMine(l.Extend(ctx, ttl), distlock.ErrLost)
}

func notMine(err, is error) error {
	if errors.Is(err, is) {
		return errNotMine
	}
	return err
}

// redislockSide is bsm/redislock.
type redislockSide struct{ *redislock.Client }

func newRedislock(t *testing.T) side { return redislockSide{redislock.New(newRedis(t))} }

func (s redislockSide) try(ctx context.Context, name string, ttl time.Duration) (held, error) {
	return s.obtain(ctx, name, ttl, nil)
}

func (s redislockSide) lock(ctx context.Context, name string, ttl time.Duration) (held, error) {
	return s.obtain(ctx, name, ttl, &redislock.Options{RetryStrategy: redislock.LinearBackoff(retry)})
}

func (s redislockSide) obtain(ctx context.Context, name string, ttl time.Duration, o *redislock.Options) (held, error) {
	l, err := s.Obtain(ctx, prefix+name, ttl, o)
	if errors.Is(err, redislock.ErrNotObtained) {
		err = errBusy
	}
	return redislockHeld{l}, err
}

type redislockHeld struct{ *redislock.Lock }

func (l redislockHeld) unlock(ctx context.Context) error {
	return notMine(l.Release(ctx), redislock.ErrLockNotHeld)
}

func (l redislockHeld) extend(ctx context.Context, ttl time.Duration) error {
	return notMine(l.Refresh(ctx, ttl, nil), redislock.ErrNotObtained)
}

// redsyncSide is redsync, with one server.
type redsyncSide struct{ *redsync.Redsync }

func newRedsync(t *testing.T) side { return redsyncSide{redsync.New(goredis.NewPool(newRedis(t)))} }

func (s redsyncSide) mutex(name string, ttl time.Duration) redsyncHeld {
	return redsyncHeld{s.NewMutex(prefix+name, redsync.WithExpiry(ttl), redsync.WithTries(math.MaxInt32), redsync.WithRetryDelay(retry))}
}

func (s redsyncSide) try(ctx context.Context, name string, ttl time.Duration) (held, error) {
	m := s.mutex(name, ttl)
	err := m.TryLockContext(ctx)
	if taken := (*redsync.ErrTaken)(nil); errors.As(err, &taken) {
		err = errBusy
	}
	return m, err
}

func (s redsyncSide) lock(ctx context.Context, name string, ttl time.Duration) (held, error) {
	m := s.mutex(name, ttl)
	return m, m.LockContext(ctx)
}

type redsyncHeld struct{ *redsync.Mutex }

func (m redsyncHeld) unlock(ctx context.Context) error { return confirmed(m.UnlockContext(ctx)) }

// extend can only repeat the time that the lock was taken for.
func (m redsyncHeld) extend(ctx context.Context, _ time.Duration) error {
	return confirmed(m.ExtendContext(ctx))
}

// confirmed is what redsync says of a lock that it could ask for: all of its nodes, one
// here, may have refused.
func confirmed(ok bool, err error) error {
	network := (*redsync.RedisError)(nil)
	if ok || errors.As(err, &network) {
		return err
	}
	return errNotMine
}
