package rueidislock

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/distlock/distlock/backend/redislock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/faultproxy"
	"github.com/distlock/distlock/internal/testkit/locktest"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// The server executes a command, and the answer is lost. rueidis must not repeat the command.
func TestLostAnswers(t *testing.T) {
	addr := testserver.SharedRedis(t).Addr()
	n := newNetwork(t)
	for _, opts := range []redislock.Options{{}, {Layout: redislock.Redisson}, {Scripts: redislock.ScriptsOff}} {
		b, ctx := open(t, single(addr), opts, n), t.Context()
		for _, mode := range []driver.Mode{driver.Exclusive, driver.Write, driver.Read, driver.Counted} {
			if !b.Caps().Modes.Has(mode) {
				continue
			}
			warm(t, b, mode)
			r := request("", mode)
			lose := func() { n.before(addr).LoseReply(r.Name) }

			lose()
			_, err := b.Acquire(ctx, r)
			unknown(t, "acquire", err)
			first := acquire(t, b, r)
			if again := acquire(t, b, r); again.Fence <= first.Fence {
				t.Errorf("fence %d after %d", again.Fence, first.Fence)
			}
			lose()
			unknown(t, "renew", b.Renew(ctx, []driver.Hold{r.Hold})[0])
			if err := b.Renew(ctx, []driver.Hold{r.Hold})[0]; err != nil {
				t.Errorf("%+v %v: renewed again: %v", opts, mode, err)
			}
			lose()
			unknown(t, "release", b.Release(ctx, r.Hold))
			b.Release(ctx, r.Hold)
			acquire(t, b, request(r.Name, mode))
		}
	}
}

func TestStalledServer(t *testing.T) {
	srv := testserver.Redis(t)
	o := single(srv.Addr())
	o.ConnWriteTimeout = time.Hour
	b := open(t, o, redislock.Options{}, nil)
	warm(t, b, driver.Exclusive)
	locktest.StalledServer(t, b, srv, anyRequest)
}

func anyRequest() driver.Request { return request("", driver.Exclusive) }

func TestStalledServerAndOthers(t *testing.T) {
	srv := testserver.Redis(t)
	b := open(t, single(srv.Addr()), redislock.Options{}, nil)
	warm(t, b, driver.Exclusive)
	locktest.StalledServerAndOthers(t, b, srv, anyRequest)
}

// An attempt that meets refused connections fails with ErrUnsent.
func TestRefusedConnectionsSendNothing(t *testing.T) {
	for _, opts := range []redislock.Options{{}, {Scripts: redislock.ScriptsOff}} {
		srv := testserver.Redis(t)
		b := open(t, single(srv.Addr()), opts, nil)
		warm(t, b, driver.Exclusive)
		srv.Kill()
		faultproxy.AwaitUnsent(t, b, anyRequest)
	}
}

// The server dies and comes back. Watches are signalled, since they may have missed a message.
func TestWatchSurvivesTheServer(t *testing.T) {
	srv := testserver.Redis(t)
	b := open(t, single(srv.Addr()), redislock.Options{}, nil)
	r := request("", driver.Exclusive)
	w := locktest.Watch(t, b, r)
	srv.Kill()
	if _, err := b.Watch(t.Context(), request("", driver.Exclusive)); err == nil || driver.Final(err) {
		t.Errorf("watch without a server: %v", err)
	}
	srv.Start()
	signalled(t, w)
	w.Close()
	wakes(t, b, r.Name)
}

// WAIT follows on the connection of the write.
func TestReplicas(t *testing.T) {
	master := testserver.Redis(t, "--repl-diskless-sync-delay", "0")
	host, port, _ := net.SplitHostPort(master.Addr())
	replica := testserver.Redis(t, "--replicaof", host+" "+port)
	acked := redislock.Options{Replicas: 1, ReplicaTimeout: 2 * time.Second}
	b := open(t, single(master.Addr()), acked, nil)
	held := request("", driver.Exclusive)
	eventually(t, func(ctx context.Context) error { // once the replica follows
		_, err := b.Acquire(ctx, held)
		return err
	})
	acked.ReplicaTimeout = 20 * time.Millisecond
	hasty := open(t, single(master.Addr()), acked, nil)
	replica.Pause()
	_, err := hasty.Acquire(t.Context(), request("", driver.Exclusive))
	for _, err := range []error{err, hasty.Renew(t.Context(), []driver.Hold{held.Hold})[0]} {
		unknown(t, "without a replica", err)
		if err == nil || !strings.Contains(err.Error(), "0 of 1 replicas have it") {
			t.Errorf("%v: want the number of replicas", err)
		}
	}
	replica.Resume()
	release(t, b, held)
}
