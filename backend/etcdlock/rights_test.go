package etcdlock

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// A user needs the keys of the locks, to read and to write, and nothing else.
func TestRights(t *testing.T) {
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
		everyCall(t, mustOpen(t, u+"/locks"), "order")
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

// everyCall makes each call that a backend has.
func everyCall(t *testing.T, b *Backend, name string) {
	t.Helper()
	first, second := request(name, driver.Exclusive), request(name, driver.Exclusive)
	acquire(t, b, first)
	second.Queue = true
	refused(t, b, second, driver.ErrHeld)
	w := armWatch(t, b, second)
	if err := b.Renew(t.Context(), []driver.Hold{first.Hold})[0]; err != nil {
		t.Error(err)
	}
	if info, err := b.Inspect(t.Context(), name); err != nil || len(info.Holders) != 1 || len(info.Waiters) != 1 {
		t.Errorf("%+v, %v", info, err)
	}
	release(t, b, first)
	awaitSignal(t, w)
	w.Close()
	acquire(t, b, second)
	release(t, b, second)
}

// Who may do nothing any more hears so, in whatever they do.
func TestRightsAreWithdrawn(t *testing.T) {
	srv := testserver.Etcd(t, testserver.EtcdOptions{})
	b := mustOpen(t, srv.URL()+"/locks")
	r := request("order", driver.Exclusive)
	acquire(t, b, r)
	srv.Protect("s3cret")
	refused(t, b, request("order", driver.Exclusive), driver.ErrInvalid)
	if err := b.Renew(t.Context(), []driver.Hold{r.Hold})[0]; err == nil || errors.Is(err, driver.ErrLost) {
		t.Errorf("renew: %v: that is no fact", err)
	}
}

// A TTL below what the servers grant is refused, and not stretched.
func TestShortTTL(t *testing.T) {
	srv := testserver.Etcd(t, testserver.EtcdOptions{Args: []string{"--heartbeat-interval", "100", "--election-timeout", "1000"}})
	b := mustOpen(t, srv.URL())
	_, err := distlock.New(b, &distlock.Options{TTL: time.Second})
	if !errors.Is(err, distlock.ErrInvalid) || !strings.Contains(err.Error(), "2s") {
		t.Errorf("TTL of a second: %v", err)
	}
	locks, err := distlock.New(b, &distlock.Options{TTL: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	if err := locks.Mutex("a").Do(t.Context(), func(context.Context) error { return nil }); err != nil {
		t.Error(err)
	}
}
