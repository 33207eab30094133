package redislock

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
	"github.com/redis/go-redis/v9"
)

// replicated returns a master with one replica that is in sync.
func replicated(t testing.TB) (master, replica *testserver.RedisServer) {
	master = testserver.Redis(t, "--repl-diskless-sync-delay", "0")
	host, port, err := net.SplitHostPort(master.Addr())
	if err != nil {
		t.Fatal(err)
	}
	replica = testserver.Redis(t, "--replicaof", host+" "+port)
	awaitReplica(t, master)
	return master, replica
}

// awaitReplica waits until the replica acknowledges what is written.
func awaitReplica(t testing.TB, master *testserver.RedisServer) {
	t.Helper()
	c := raw(t, master.Addr()).Conn()
	defer c.Close()
	eventually(t, "the replica follows", func() bool {
		c.Set(t.Context(), "awaited", 1, time.Second)
		return c.Wait(t.Context(), 1, 100*time.Millisecond).Val() == 1
	})
}

// acked is for requests that must be refused, patient for requests that must not.
func acked(layout Layout) Options {
	return Options{Layout: layout, Replicas: 1, ReplicaTimeout: 20 * time.Millisecond}
}

func patient(layout Layout) Options {
	return Options{Layout: layout, Replicas: 1, ReplicaTimeout: tooLong / 2}
}

// short fails the test unless err says that no replica has it and the outcome is unknown.
func short(t *testing.T, what string, err error) {
	t.Helper()
	unknown(t, what, err)
	if err == nil || !strings.Contains(err.Error(), "0 of 1 replicas have it") {
		t.Errorf("%s: %v, want the number of replicas that have it", what, err)
	}
}

func TestReplicas(t *testing.T) {
	eachOpener(t, func(t *testing.T, o opener) {
		master, replica := replicated(t)
		for _, layout := range []Layout{String, Redisson} {
			testReplicas(t, o, layout, master, replica)
		}
	})
}

func testReplicas(t *testing.T, o opener, layout Layout, master, replica *testserver.RedisServer) {
	givenBack := map[driver.Mode]bool{driver.Exclusive: true, driver.Write: true, driver.Read: false, driver.Counted: true}
	b, hasty := o.open(t, master.Addr(), patient(layout)), o.open(t, master.Addr(), acked(layout))
	copies := raw(t, replica.Addr())
	for mode, back := range givenBack {
		held, r := request("", mode), request("", mode)
		acquire(t, b, held)
		if len(dump(t, copies, held)) == 0 {
			t.Errorf("%v: taken, and not on the replica", mode)
		}
		replica.Pause()
		_, err := hasty.Acquire(t.Context(), r)
		short(t, "acquire", err)
		if info, err := b.Inspect(t.Context(), r.Name); err != nil || back == (len(info.Holders) > 0) {
			t.Errorf("%v: after the refusal it is held by %v, %v", mode, info.Holders, err)
		}
		want := driver.ErrHeld
		if layout == Redisson && !mode.SameKind(driver.Write) {
			want = driver.ErrInvalid
		}
		refused(t, hasty, request(held.Name, driver.Write), want)
		errs := hasty.Renew(t.Context(), []driver.Hold{held.Hold, request("", mode).Hold})
		short(t, "renewal", errs[0])
		if !errors.Is(errs[1], driver.ErrLost) {
			t.Errorf("%v: renewal of a lock that is not held: %v", mode, errs[1])
		}
		release(t, b, held) // asks no replica
		replica.Resume()
		acquire(t, b, r)
		if err := b.Renew(t.Context(), []driver.Hold{r.Hold})[0]; err != nil {
			t.Errorf("%v: renewed when the replica is back: %v", mode, err)
		}
	}
}

// A renewal for less than what is left is written all the same: since Redis 7.2 WAIT waits for
// nothing on a connection that has written nothing.
func TestReplicasOfAShorterRenewal(t *testing.T) {
	master, _ := replicated(t)
	c := raw(t, master.Addr())
	written := func() string {
		t.Helper()
		info := must.Get(c.InfoMap(t.Context(), "replication").Result())(t)
		return info["Replication"]["master_repl_offset"]
	}
	for _, layout := range []Layout{String, Redisson} {
		b := openOwn(t, master.Addr(), Options{Layout: layout}) // WAIT itself writes a question
		for _, mode := range allModes {
			r := request("", mode)
			acquire(t, b, r)
			for _, ttl := range []time.Duration{time.Hour, r.TTL} {
				r.TTL = ttl
				before := written()
				if err := b.Renew(t.Context(), []driver.Hold{r.Hold})[0]; err != nil {
					t.Fatal(err)
				}
				if written() == before {
					t.Errorf("%s, %v: the replica hears nothing of a renewal for %v", layout, mode, ttl)
				}
			}
		}
	}
}

// Many locks at once: each caller learns that its own lock is on the replica, and none does while
// the replica is silent.
func TestReplicasOfMany(t *testing.T) {
	eachOpener(t, func(t *testing.T, o opener) {
		master, replica := replicated(t)
		b, hasty := o.open(t, master.Addr(), patient(String)), o.open(t, master.Addr(), acked(String))
		copies := raw(t, replica.Addr())
		each := func(b *Backend, check func(r driver.Request, err error)) {
			var wg sync.WaitGroup
			for range 24 {
				wg.Go(func() {
					r := request("", driver.Exclusive)
					_, err := b.Acquire(t.Context(), r)
					check(r, err)
				})
			}
			wg.Wait()
		}
		each(b, func(r driver.Request, err error) {
			if n := copies.Exists(t.Context(), r.Name).Val(); err != nil || n != 1 {
				t.Errorf("taken with %v, and %d copies", err, n)
			}
		})
		replica.Pause()
		each(hasty, func(_ driver.Request, err error) { short(t, "acquire", err) })
		replica.Resume()
		if n := len(raw(t, master.Addr()).Keys(t.Context(), "test:*").Val()); n != 24 {
			t.Errorf("%d locks are left, want the 24 that were taken", n)
		}
	})
}

// A lease ends if the replica does not acknowledge its renewals. The error of a wait for a lock
// names the reason.
func TestReplicasThroughTheCore(t *testing.T) {
	t.Parallel()
	master, replica := replicated(t)
	b := openOwn(t, master.Addr(), acked(String))
	locks, err := distlock.New(b, &distlock.Options{TTL: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer locks.Close()
	lease := must.Get(locks.Mutex("kept").Lock(t.Context()))(t)
	replica.Pause()
	for patience := 500 * time.Millisecond; ; patience *= 2 { // an attempt may take longer on a busy machine
		ctx, cancel := timeout(t, patience)
		_, err = locks.Mutex("new").Lock(ctx)
		cancel()
		if err == nil || strings.Contains(err.Error(), "0 of 1 replicas have it") || patience > tooLong/4 {
			break
		}
	}
	if !errors.Is(err, distlock.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "0 of 1 replicas have it") {
		t.Errorf("lock: %v", err)
	}
	eventually(t, "a try names the reason", func() bool {
		_, err := locks.Mutex("tried").TryLock(t.Context())
		return errors.Is(err, distlock.ErrUnavailable) && strings.Contains(err.Error(), "0 of 1 replicas have it")
	})
	<-lease.Context().Done()
	if cause := context.Cause(lease.Context()); !errors.Is(cause, distlock.ErrLost) {
		t.Errorf("ended with %v", cause)
	}
	replica.Resume()
	awaitReplica(t, master)
	eventually(t, "the replica is back", func() bool {
		return locks.Mutex("new").Do(t.Context(), func(context.Context) error { return nil }) == nil
	})
}

func TestReplicasThatAreNotThere(t *testing.T) {
	srv := testserver.SharedRedis(t)
	b := openOwn(t, srv.Addr(), acked(String))
	_, err := b.Acquire(t.Context(), request("", driver.Exclusive))
	short(t, "acquire", err)
}

func TestReplicaOptions(t *testing.T) {
	srv := testserver.SharedRedis(t)
	for _, query := range []string{"replicas=-1", "replicas=x", "replica_timeout=1s", "replicas=1&replica_timeout=0s", "replicas=1&replica_timeout=5s", "replicas=1&timeout=1s"} {
		if _, err := Open(t.Context(), srv.URL()+"?"+query); !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("%s: %v", query, err)
		}
	}
	c := redis.NewClient(&redis.Options{Addr: srv.Addr(), ReadTimeout: time.Second})
	t.Cleanup(func() { c.Close() })
	for _, o := range []Options{{Replicas: -1}, {ReplicaTimeout: time.Second}, {Replicas: 1}, {Replicas: 1, ReplicaTimeout: -1}} {
		if _, err := NewGoRedis(c, &o); !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("%+v: %v", o, err)
		}
	}
	acl := testserver.File(t, "users.acl", "user default on nopass ~* &* +@all -wait\n")
	deaf := testserver.Redis(t, "--aclfile", acl)
	if _, err := Open(t.Context(), deaf.URL()+"?replicas=1"); !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("a user who may not WAIT: %v", err)
	}
	// The first lock finds out what a client can do, and is released.
	own := openGoRedis(t, deaf.Addr(), acked(String))
	r := request("", driver.Exclusive)
	refused(t, own, r, driver.ErrInvalid)
	expect(t, dump(t, raw(t, deaf.Addr()), r))
	// A reader's is kept, so that the error may not be final: then nothing would release it.
	if _, err := own.Acquire(t.Context(), request("", driver.Read)); err == nil || driver.Final(err) || errors.Is(err, driver.ErrHeld) {
		t.Errorf("a reader's: %v", err)
	}
}

// Locks of one node that its replica acknowledges, and of all nodes.
func TestReplicasInACluster(t *testing.T) {
	g := testserver.SharedRedisCluster(t)
	for _, w := range clusterWays {
		t.Run(w.name, func(t *testing.T) {
			o := patient(String)
			b := w.open(t, g.Addrs(), o, newNetwork(t))
			var holds []driver.Hold
			for range 12 {
				r := request("", driver.Exclusive)
				acquire(t, b, r)
				holds = append(holds, r.Hold)
			}
			for i, err := range b.Renew(t.Context(), holds) {
				if err != nil {
					t.Errorf("renew %d: %v", i, err)
				}
				release(t, b, driver.Request{Hold: holds[i]})
			}
			o.Replicas = 2 // each master has one
			o.ReplicaTimeout = 50 * time.Millisecond
			_, err := w.open(t, g.Addrs(), o, newNetwork(t)).Acquire(t.Context(), request("", driver.Exclusive))
			unknown(t, "acquire", err)
		})
	}
}

// An acquire that was given up on its way lands before its release, and not after it.
func TestReplicasOfAnAbandonedAcquire(t *testing.T) {
	master, _ := replicated(t)
	b, relay := openRelayed(t, master.Addr(), patient(String))
	r := request("", driver.Exclusive)
	warm(t, b, driver.Exclusive)
	var first atomic.Bool
	under, on := make(chan struct{}), make(chan struct{})
	relay.before(func([]string) {
		if first.CompareAndSwap(false, true) {
			close(under)
			<-on
		}
	})
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-under; cancel() }()
	_, err := b.Acquire(ctx, r)
	unknown(t, "acquire", err)
	released := make(chan error, 1)
	go func() { released <- b.Release(t.Context(), r.Hold) }()
	select {
	case err := <-released:
		t.Errorf("the release has overtaken the acquire: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	close(on)
	if err := <-released; err != nil {
		t.Errorf("release: %v", err)
	}
}
