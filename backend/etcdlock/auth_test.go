package etcdlock

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// A user needs to read and write the keys of the locks, and nothing else.
func TestPermissions(t *testing.T) {
	srv := testserver.Etcd(t, testserver.EtcdOptions{Password: "s3cret"})
	both := func(prefix string) testserver.EtcdGrant {
		return testserver.EtcdGrant{Prefix: prefix, Read: true, Write: true}
	}
	all := srv.AddUser("all", "x", both("locks/"))
	one := srv.AddUser("one", "x", both("locks/order/"))
	reader := srv.AddUser("reader", "x", testserver.EtcdGrant{Prefix: "locks/", Read: true})
	writer := srv.AddUser("writer", "x", testserver.EtcdGrant{Prefix: "locks/", Write: true})
	nobody := srv.AddUser("nobody", "x")
	for _, u := range []string{all, one} {
		callAll(t, mustOpen(t, u+"/locks"), "order")
	}
	for who, u := range map[string]string{"one": one, "reader": reader, "writer": writer, "nobody": nobody} {
		b := mustOpen(t, u+"/locks")
		for _, queue := range []bool{false, true} {
			r := request("other", driver.Exclusive)
			r.Queue = queue
			if err := refused(t, b, r, driver.ErrInvalid); !strings.Contains(err.Error(), "may not") || strings.Contains(err.Error(), "s3cret") {
				t.Errorf("%s: %v", who, err)
			}
		}
	}
}

// callAll calls each method of a backend.
func callAll(t *testing.T, b *Backend, name string) {
	t.Helper()
	first, second := request(name, driver.Exclusive), request(name, driver.Exclusive)
	acquire(t, b, first)
	second.Queue = true
	refused(t, b, second, driver.ErrHeld)
	w := armWatch(t, b, second)
	expect.OK(t, b.Renew(t.Context(), []driver.Hold{first.Hold})[0])
	if info, err := b.Inspect(t.Context(), name); err != nil || len(info.Holders) != 1 || len(info.Waiters) != 1 {
		t.Errorf("%+v, %v", info, err)
	}
	release(t, b, first)
	awaitSignal(t, w)
	w.Close()
	acquire(t, b, second)
	release(t, b, second)
}

// A user whose permissions were withdrawn gets no fact from any call, and an attempt has sent nothing.
func TestWithdrawnPermissions(t *testing.T) {
	srv := testserver.Etcd(t, testserver.EtcdOptions{})
	b := mustOpen(t, srv.URL()+"/locks")
	r := request("order", driver.Exclusive)
	acquire(t, b, r)
	srv.Protect("s3cret")
	_, err := b.Acquire(t.Context(), request("order", driver.Exclusive))
	if !errors.Is(err, driver.ErrUnsent) || driver.Final(err) || !strings.Contains(err.Error(), "wants a user") {
		t.Errorf("acquire: %v", err)
	}
	if err := b.Renew(t.Context(), []driver.Hold{r.Hold})[0]; err == nil || errors.Is(err, driver.ErrLost) {
		t.Errorf("renew: %v, want an unknown outcome", err)
	}
}

// A TTL below the servers' minimum is refused, and not raised.
func TestShortTTL(t *testing.T) {
	srv := testserver.Etcd(t, testserver.EtcdOptions{Args: []string{"--heartbeat-interval", "100", "--election-timeout", "1000"}})
	b := mustOpen(t, srv.URL())
	_, err := distlock.New(b, &distlock.Options{TTL: time.Second})
	if !errors.Is(err, distlock.ErrInvalid) || !strings.Contains(err.Error(), "2s") {
		t.Errorf("TTL of a second: %v", err)
	}
	locks := must.Get(distlock.New(b, &distlock.Options{TTL: 2 * time.Second}))(t)
	lease := must.Get(locks.Mutex("a").Lock(t.Context()))(t)
	lease.Unlock(t.Context()) // its result says nothing: so short a TTL may be over on a busy machine
}

// The watch stream outlives the token with which it was opened. The server refuses new watches then,
// and they are requested again with a new token.
func TestTokenThatHasEnded(t *testing.T) {
	t.Parallel()
	tokenEnds(t, testserver.EtcdOptions{Password: "s3cret"})
}

func TestLongTokenThatHasEndedOnTheCurrentRelease(t *testing.T) {
	t.Parallel()
	tokenEnds(t, testserver.EtcdOptions{Password: "s3cret", Current: true})
}

func tokenEnds(t *testing.T, o testserver.EtcdOptions) {
	srv := testserver.Etcd(t, o)
	own := testserver.EtcdGrant{Prefix: "locks/", Read: true, Write: true}
	u := srv.AddUser("ann", "x", own)
	b, other := openPatiently(t, u+"/locks"), openPatiently(t, u+"/locks")
	waitTurn := func(what string) {
		t.Helper()
		held, w := request("", driver.Exclusive), request("", driver.Exclusive)
		w.Name, w.Queue = held.Name, true
		acquire(t, other, held)
		refused(t, b, w, driver.ErrHeld)
		ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
		defer cancel()
		watch, err := b.Watch(ctx, w)
		must.OK(t, err, what)
		defer watch.Close()
		awaitQuiet(t, watch)
		release(t, other, held)
		awaitSignal(t, watch)
		acquire(t, b, w)
		release(t, b, w)
	}
	waitTurn("with its token")
	endTokens(t, srv, "ann")
	waitTurn("without it")

	endTokens(t, srv, "ann")
	r, lost := withOnLost(request("", driver.Exclusive))
	acquire(t, b, r)
	eventually(t, "the hold is watched", func() bool { return watchedHolds(b) == 1 })
	must.OK(t, other.Release(t.Context(), r.Hold))
	awaitLost(t, lost)
}

// endTokens ends the logins of a user, by setting the same password again.
func endTokens(t *testing.T, srv *testserver.EtcdServer, user string) {
	t.Helper()
	root := must.Get(clientv3.New(clientv3.Config{Endpoints: []string{srv.Addr()}, Username: "root", Password: "s3cret", Logger: zap.NewNop()}))(t)
	defer root.Close()
	must.Get(root.UserChangePassword(t.Context(), user, "x"))(t)
}
