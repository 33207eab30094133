// Package strings tests that distlock shares a lock with libraries that keep it as a plain string key
// (SET name value NX PX, and a compare-and-delete): redsync, bsm/redislock and redis-py.
package strings

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io"
	"math"
	"os"
	"os/exec"
	"sync"
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

// side is a client of one of the libraries. Names are distlock's.
type side interface {
	// try makes one attempt. It returns errBusy if the lock is held.
	try(ctx context.Context, name string, ttl time.Duration) (held, error)
	// lock waits as the library does.
	lock(ctx context.Context, name string, ttl time.Duration) (held, error)
}

// held is an acquired lock. Its methods return errNotHeld if it isn't held any more.
type held interface {
	unlock(ctx context.Context) error
	extend(ctx context.Context, ttl time.Duration) error
}

var (
	errBusy    = errors.New("it is held")
	errNotHeld = errors.New("not held")
)

// prefix precedes all names. The peers' users write it out; distlock has an option.
const prefix = "app:lock:"

// retryDelay is a peer's pause between two attempts.
const retryDelay = 5 * time.Millisecond

// peerKinds has the libraries that distlock shares locks with.
var peerKinds = map[string]func(t *testing.T) side{
	"redsync":   newRedsync,
	"redislock": newRedislock,
	"redis-py":  newPython,
}

func eachPeer(t *testing.T, test func(t *testing.T, peer func(t *testing.T) side)) {
	for name, peer := range peerKinds {
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
	return distlockHeld{l}, err
}

func (s distlockSide) lock(ctx context.Context, name string, ttl time.Duration) (held, error) {
	l, err := s.c.Mutex(name, distlock.WithTTL(ttl)).Lock(ctx)
	return distlockHeld{l}, err
}

type distlockHeld struct{ *distlock.Lease }

func (h distlockHeld) unlock(ctx context.Context) error {
	return notHeldIf(h.Unlock(ctx), distlock.ErrLost)
}

func (h distlockHeld) extend(ctx context.Context, ttl time.Duration) error {
	return notHeldIf(h.Extend(ctx, ttl), distlock.ErrLost)
}

func notHeldIf(err, is error) error {
	if errors.Is(err, is) {
		return errNotHeld
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
	return s.obtain(ctx, name, ttl, &redislock.Options{RetryStrategy: redislock.LinearBackoff(retryDelay)})
}

func (s redislockSide) obtain(ctx context.Context, name string, ttl time.Duration, o *redislock.Options) (held, error) {
	l, err := s.Obtain(ctx, prefix+name, ttl, o)
	if errors.Is(err, redislock.ErrNotObtained) {
		err = errBusy
	}
	return redislockHeld{l}, err
}

type redislockHeld struct{ *redislock.Lock }

func (h redislockHeld) unlock(ctx context.Context) error {
	return notHeldIf(h.Release(ctx), redislock.ErrLockNotHeld)
}

func (h redislockHeld) extend(ctx context.Context, ttl time.Duration) error {
	return notHeldIf(h.Refresh(ctx, ttl, nil), redislock.ErrNotObtained)
}

// redsyncSide is redsync, with one server.
type redsyncSide struct{ *redsync.Redsync }

func newRedsync(t *testing.T) side { return redsyncSide{redsync.New(goredis.NewPool(newRedis(t)))} }

func (s redsyncSide) mutex(name string, ttl time.Duration) redsyncHeld {
	return redsyncHeld{s.NewMutex(prefix+name, redsync.WithExpiry(ttl), redsync.WithTries(math.MaxInt32), redsync.WithRetryDelay(retryDelay))}
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

func (h redsyncHeld) unlock(ctx context.Context) error { return redsyncError(h.UnlockContext(ctx)) }

// extend repeats the TTL of the attempt: redsync can't change it.
func (h redsyncHeld) extend(ctx context.Context, _ time.Duration) error {
	return redsyncError(h.ExtendContext(ctx))
}

// redsyncError distinguishes refusals of all nodes, of which there is one here, from network errors.
func redsyncError(ok bool, err error) error {
	network := (*redsync.RedisError)(nil)
	if ok || errors.As(err, &network) {
		return err
	}
	return errNotHeld
}

func mustTry(t *testing.T, s side, name string, ttl time.Duration) held {
	t.Helper()
	h, err := s.try(t.Context(), name, ttl)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func expectBusy(t *testing.T, who string, s side, name string) {
	t.Helper()
	if _, err := s.try(t.Context(), name, time.Minute); !errors.Is(err, errBusy) {
		t.Errorf("%s takes a held lock: %v", who, err)
	}
}

func expectError(t *testing.T, what string, got, want error) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

// pythonSide is a process with redis-py that executes one call after another.
type pythonSide struct {
	mu  sync.Mutex
	in  *json.Encoder
	out *json.Decoder
}

// pythonCall and pythonAnswer are the JSON lines of peer.py.
type pythonCall struct {
	Do   string `json:"do"`
	Name string `json:"name,omitempty"`
	TTL  int64  `json:"ttl,omitempty"` // ms
	Wait bool   `json:"wait"`
	ID   int    `json:"id"`
}

type pythonAnswer struct {
	ID    int    `json:"id"`
	Error string `json:"error"`
}

func newPython(t *testing.T) side {
	t.Helper()
	cmd := exec.Command(testserver.RedisPy(t), "peer.py", testserver.SharedRedis(t).Addr())
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := testserver.Spawn(cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close() // the process ends at the end of its input
		io.Copy(io.Discard, out)
		cmd.Wait()
	})
	return &pythonSide{in: json.NewEncoder(in), out: json.NewDecoder(bufio.NewReader(out))}
}

func (p *pythonSide) call(c pythonCall) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.in.Encode(c); err != nil {
		return 0, err
	}
	var a pythonAnswer
	if err := p.out.Decode(&a); err != nil {
		return 0, err
	}
	switch a.Error {
	case "":
		return a.ID, nil
	case "busy":
		return 0, errBusy
	case "not held":
		return 0, errNotHeld
	}
	return 0, errors.New(a.Error)
}

func (p *pythonSide) try(_ context.Context, name string, ttl time.Duration) (held, error) {
	return p.acquire(name, ttl, false)
}

func (p *pythonSide) lock(_ context.Context, name string, ttl time.Duration) (held, error) {
	return p.acquire(name, ttl, true)
}

func (p *pythonSide) acquire(name string, ttl time.Duration, wait bool) (held, error) {
	id, err := p.call(pythonCall{Do: "lock", Name: prefix + name, TTL: ttl.Milliseconds(), Wait: wait})
	return pythonHeld{p, id}, err
}

type pythonHeld struct {
	p  *pythonSide
	id int
}

func (h pythonHeld) unlock(context.Context) error {
	_, err := h.p.call(pythonCall{Do: "unlock", ID: h.id})
	return err
}

func (h pythonHeld) extend(_ context.Context, ttl time.Duration) error {
	_, err := h.p.call(pythonCall{Do: "extend", ID: h.id, TTL: ttl.Milliseconds()})
	return err
}
