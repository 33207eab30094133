// Package strings tests that distlock shares a lock with libraries that keep it as a plain string key
// (SET name value NX PX, and a compare-and-delete): redsync, bsm/redislock and redis-py.
package strings

import (
	"bufio"
	"context"
	cryptorand "crypto/rand"
	"encoding/json"
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"

	"github.com/distlock/distlock"
	ours "github.com/distlock/distlock/backend/redislock"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
	"github.com/distlock/distlock/interop/peers"
)

// A peer's lock excludes distlock, which neither breaks nor extends it, and shows it.
func TestPeerHolds(t *testing.T) {
	eachPeer(t, func(t *testing.T, peer func(*testing.T) side) {
		ctx, c, name := t.Context(), newRedis(t), newName()
		us := openDistlock(t, prefix)
		theirs := mustTry(t, peer(t), name, time.Hour)
		value, ends := c.Get(ctx, prefix+name).Val(), c.PExpireTime(ctx, prefix+name).Val()

		for range 3 {
			expectBusy(t, "distlock", us, name)
		}
		info, err := us.c.Inspect(ctx, name)
		if err != nil || len(info.Holders) != 1 {
			t.Fatalf("inspect: %+v, %v", info, err)
		}
		h := info.Holders[0]
		if info.Mode != distlock.Exclusive || h.Owner != value || h.Fence != 0 || h.Left < 50*time.Minute || h.Left > time.Hour {
			t.Errorf("inspect shows %+v, the value is %q", info, value)
		}
		for n := range us.c.List(ctx, name) {
			t.Errorf("a plain string could be any data, but is listed: %q", n)
		}
		if v, e := c.Get(ctx, prefix+name).Val(), c.PExpireTime(ctx, prefix+name).Val(); v != value || e != ends {
			t.Errorf("their lock was %q until %v, is %q until %v", value, ends, v, e)
		}
		expectError(t, "their extend", theirs.extend(ctx, time.Hour), nil)
		expectError(t, "their unlock", theirs.unlock(ctx), nil)
		expectError(t, "our unlock", mustTry(t, us, name, time.Minute).unlock(ctx), nil)
	})
}

// A holder whose lock has expired can't touch the next holder's lock, on either side.
func TestExpiredLocksTouchNothing(t *testing.T) {
	eachPeer(t, func(t *testing.T, peer func(*testing.T) side) {
		ctx, c, us, them := t.Context(), newRedis(t), openDistlock(t, prefix), peer(t)
		for name, roles := range map[string][2]side{"theirs ran out": {them, us}, "ours ran out": {us, them}} {
			name += newName()
			late := mustTry(t, roles[0], name, time.Minute)
			c.Del(ctx, prefix+name) // it expires
			next := mustTry(t, roles[1], name, time.Minute)
			value, ends := c.Get(ctx, prefix+name).Val(), c.PExpireTime(ctx, prefix+name).Val()
			expectError(t, name+": extend", late.extend(ctx, time.Hour), errNotHeld)
			expectError(t, name+": unlock", late.unlock(ctx), errNotHeld)
			expectBusy(t, name, roles[0], name)
			if v, e := c.Get(ctx, prefix+name).Val(), c.PExpireTime(ctx, prefix+name).Val(); v != value || e != ends {
				t.Errorf("%s: the lock was %q until %v, is %q until %v", name, value, ends, v, e)
			}
			expectError(t, name+": unlock by the next", next.unlock(ctx), nil)
		}
	})
}

// Readers, writers and permits exclude the peers, and are excluded by them.
func TestKindsBesidePeers(t *testing.T) {
	eachPeer(t, func(t *testing.T, peer func(*testing.T) side) {
		ctx, us, them := t.Context(), openDistlock(t, prefix), peer(t)
		for kind, of := range map[string]func(name string) (try func(context.Context) (*distlock.Lease, error)){
			"reader": func(name string) func(context.Context) (*distlock.Lease, error) { return us.c.RWMutex(name).TryRLock },
			"writer": func(name string) func(context.Context) (*distlock.Lease, error) { return us.c.RWMutex(name).TryLock },
			"permit": func(name string) func(context.Context) (*distlock.Lease, error) {
				return us.c.Semaphore(name, 2).TryAcquire
			},
		} {
			name := newName()
			try := of(name)
			ours := must.Get(try(ctx))(t)
			expectBusy(t, kind+": a peer", them, name)
			must.OK(t, ours.Unlock(ctx))
			theirs := mustTry(t, them, name, time.Minute)
			expect.Be(t, expect.Err(try(ctx)), distlock.ErrHeld, kind, "beside a peer")
			expectError(t, kind+": their unlock", theirs.unlock(ctx), nil)
			must.OK(t, must.Get(try(ctx))(t).Unlock(ctx))
		}
	})
}

// The peers publish nothing: distlock's waiters poll, long before the lock would end, and so do theirs.
func TestWakeUpByPoll(t *testing.T) {
	const rounds = 3
	eachPeer(t, func(t *testing.T, peer func(*testing.T) side) {
		us, them := openDistlock(t, prefix), peer(t)
		for waits, roles := range map[string][2]side{"distlock": {us, them}, "peer": {them, us}} {
			var took []time.Duration
			for range rounds {
				took = append(took, wakeUp(t, roles[0], roles[1]))
			}
			slices.Sort(took)
			t.Logf("%s waits: woken after %v (median), %v (longest)", waits, took[rounds/2], took[rounds-1])
			if took[rounds-1] > time.Minute {
				t.Errorf("%s waits: woken after %v", waits, took)
			}
		}
	})
}

// wakeUp returns the time from a release to the waiter's grant.
func wakeUp(t *testing.T, waiter, holder side) time.Duration {
	t.Helper()
	name := newName()
	h := mustTry(t, holder, name, time.Hour)
	var at time.Time
	var w sync.WaitGroup
	w.Go(func() {
		l, err := waiter.lock(t.Context(), name, time.Minute)
		if err != nil {
			t.Error(err)
			return
		}
		at = time.Now()
		expectError(t, "unlock", l.unlock(t.Context()), nil)
	})
	time.Sleep(100 * time.Millisecond) // a late waiter does no harm
	start := time.Now()
	expectError(t, "unlock", h.unlock(t.Context()), nil)
	w.Wait()
	return at.Sub(start)
}

// contender is a side that polls quickly, so that the libraries compete for each turn.
type contender struct{ side }

func (c contender) Lock(ctx context.Context, name string) (peers.Held, error) {
	for {
		h, err := c.try(ctx, name, time.Minute)
		if !errors.Is(err, errBusy) {
			return contenderHeld{h}, err
		}
		time.Sleep(rand.N(time.Millisecond))
	}
}

type contenderHeld struct{ held }

// Unlock leaves the others time for a turn.
func (h contenderHeld) Unlock(ctx context.Context) error {
	defer time.Sleep(rand.N(time.Millisecond))
	return h.unlock(ctx)
}

func (contenderHeld) Fence() uint64 { return 0 }

// Two clients of each library take turns on one lock.
func TestTurns(t *testing.T) {
	eachPeer(t, func(t *testing.T, peer func(*testing.T) side) {
		peers.Turns(t, newName(), 300, map[string][]peers.Peer{
			"distlock": {contender{newDistlock(t)}, contender{newDistlock(t)}}, "peer": {contender{peer(t)}, contender{peer(t)}},
		})
	})
}

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

func newName() string { return "test:" + cryptorand.Text() }

func newRedis(t *testing.T) *redis.Client {
	c := redis.NewClient(&redis.Options{Addr: testserver.SharedRedis(t).Addr(), DialTimeout: time.Minute, ReadTimeout: time.Minute, WriteTimeout: time.Minute, MaxRetries: -1})
	t.Cleanup(func() { c.Close() })
	return c
}

// distlockSide is distlock.
type distlockSide struct{ c *distlock.Client }

func newDistlock(t *testing.T) side { return openDistlock(t, prefix) }

func openDistlock(t *testing.T, prefix string) distlockSide {
	t.Helper()
	b := must.Get(ours.Open(t.Context(), testserver.SharedRedis(t).URL()+"?prefix="+prefix))(t)
	c := must.Get(distlock.New(b, nil))(t)
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
	h := must.Get(s.try(t.Context(), name, ttl))(t)
	return h
}

func expectBusy(t *testing.T, who string, s side, name string) {
	t.Helper()
	expect.Be(t, expect.Err(s.try(t.Context(), name, time.Minute)), errBusy, who, "takes a held lock")
}

func expectError(t *testing.T, what string, got, want error) {
	t.Helper()
	expect.Be(t, got, want, what)
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
	in := must.Get(cmd.StdinPipe())(t)
	out := must.Get(cmd.StdoutPipe())(t)
	must.OK(t, testserver.Spawn(cmd))
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
