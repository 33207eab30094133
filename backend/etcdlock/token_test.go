package etcdlock

import (
	"context"
	"testing"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/testserver"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// The stream of watches is open for longer than the token lasts that it was opened with.
// What it is asked for then is refused by the server, and asked for with a new token.
func TestTokenThatHasEnded(t *testing.T) {
	t.Parallel()
	tokenEnds(t, testserver.EtcdOptions{Password: "s3cret"})
}

func TestLongTokenThatHasEndedOnTheCurrentRelease(t *testing.T) {
	tokenEnds(t, testserver.EtcdOptions{Password: "s3cret", Current: true})
}

func tokenEnds(t *testing.T, o testserver.EtcdOptions) {
	srv := testserver.Etcd(t, o)
	own := testserver.EtcdGrant{Prefix: "locks/", Read: true, Write: true}
	u := srv.AddUser("ann", "x", own)
	b, other := mustOpen(t, u+"/locks"), mustOpen(t, u+"/locks")
	waitTurn := func(what string) {
		t.Helper()
		held, w := request("", driver.Exclusive), request("", driver.Exclusive)
		w.Name, w.Queue = held.Name, true
		acquire(t, other, held)
		refused(t, b, w, driver.ErrHeld)
		ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
		defer cancel()
		watch, err := b.Watch(ctx, w)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
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
	if err := other.Release(t.Context(), r.Hold); err != nil {
		t.Fatal(err)
	}
	awaitLost(t, lost)
}

// endTokens makes the servers forget the logins of a user, by a change of the password to
// what it is.
func endTokens(t *testing.T, srv *testserver.EtcdServer, user string) {
	t.Helper()
	root, err := clientv3.New(clientv3.Config{Endpoints: []string{srv.Addr()}, Username: "root", Password: "s3cret", Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	if _, err := root.UserChangePassword(t.Context(), user, "x"); err != nil {
		t.Fatal(err)
	}
}
