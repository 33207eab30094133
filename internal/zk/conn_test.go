package zk

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/distlock/distlock/internal/netaddr"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

func TestTimeoutIsWhatTheServerGrants(t *testing.T) {
	t.Parallel()
	srv := testserver.ZooKeeper(t, testserver.ZooKeeperOptions{MinSession: time.Second, MaxSession: 3 * time.Second})
	for asked, want := range map[time.Duration]time.Duration{
		time.Millisecond: time.Second, 2 * time.Second: 2 * time.Second, 1000 * time.Hour: 3 * time.Second,
	} {
		c := dial(t, Config{Servers: []string{srv.Addr()}, Timeout: asked})
		expect.Equal(t, c.Timeout(), want, "requested", asked)
		if left := time.Until(c.Deadline()); c.Deadline().IsZero() || left > want {
			t.Errorf("requested %v: the deadline is in %v", asked, left)
		}
	}
}

func TestCloseEndsTheSession(t *testing.T) {
	t.Parallel()
	c, other := shared(t), shared(t)
	dir := place(t, other)
	path := dir + "/e"
	node(t, c, path)
	ended := make(chan Event, 2)
	if _, _, _, err := c.GetW(soon(t), dir, func(e Event) { ended <- e }); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			expect.OK(t, c.Close(soon(t)), "close")
		})
	}
	wg.Wait()
	receive(t, "done", c.Done())
	expect.Be(t, c.Err(), ErrClosed, "the session is over")
	expect.Be(t, expect.Err2(other.Get(soon(t), path)), ErrNoNode, "the session's node")
	if _, _, err := c.Get(soon(t), path); !errors.Is(err, ErrClosed) || !errors.Is(err, ErrNotSent) {
		t.Errorf("a call on a closed session: %v", err)
	}
	if e := receive(t, "the watch ends", ended); e != EventSession || !errors.Is(c.Err(), ErrClosed) {
		t.Errorf("the watch received %+v", e)
	}
}

func TestChroot(t *testing.T) {
	t.Parallel()
	all := shared(t)
	root := place(t, all)
	addr := testserver.SharedZooKeeper(t).Addr()
	expect.Be(t, expect.Err(Dial(soon(t), Config{Servers: []string{addr}, Chroot: root + "/none"})), ErrNoChroot, "a missing chroot")
	c := dial(t, Config{Servers: []string{addr}, Chroot: root + "/"})
	events := make(chan Event, 2)
	if _, _, _, err := c.ChildrenW(soon(t), "/", func(e Event) { events <- e }); err != nil {
		t.Fatal(err)
	}
	e, err := c.CreateAndList(soon(t), "/x-", nil)
	if err != nil || e.Path != "/x-0000000000" {
		t.Fatalf("%+v, %v", e, err)
	}
	expect.Equal(t, receive(t, "an event", events), EventChildrenChanged, "event")
	if names, _, err := all.Children(soon(t), root); err != nil || !slices.Equal(names, []string{"x-0000000000"}) {
		t.Errorf("below the chroot: %q, %v", names, err)
	}
}

func TestPrivateNodesAreTheUsersOwn(t *testing.T) {
	t.Parallel()
	addr := testserver.SharedZooKeeper(t).Addr()
	ann := dial(t, Config{Servers: []string{addr}, Login: as("ann", "s3cret"), Private: true})
	dir := place(t, ann)
	node(t, ann, dir+"/e")
	for name, cfg := range map[string]Config{
		"nobody": {}, "wrong password": {Login: as("ann", "guess")}, "another": {Login: as("bob", "s3cret")},
	} {
		cfg.Servers = []string{addr}
		c := dial(t, cfg)
		expect.Be(t, expect.Err2(c.Get(soon(t), dir+"/e")), ErrNoAuth, name)
		// A chroot that can't be read exists nevertheless.
		cfg.Chroot = dir
		dial(t, cfg)
	}
	again := dial(t, Config{Servers: []string{addr}, Login: as("ann", "s3cret")})
	expect.OK(t, expect.Err2(again.Get(soon(t), dir+"/e")), "ann again")
}

func TestTLS(t *testing.T) {
	t.Parallel()
	srv := testserver.ZooKeeper(t, testserver.ZooKeeperOptions{TLS: true})
	trusted := srv.TLSConfig()
	trusted.ServerName = ""
	c := dial(t, Config{Servers: []string{srv.SecureAddr()}, TLS: netaddr.StaticCertificates(trusted)})
	place(t, c)
	distrust := trusted.Clone()
	distrust.RootCAs = nil
	if _, err := Dial(soon(t), Config{Servers: []string{srv.SecureAddr()}, TLS: netaddr.StaticCertificates(distrust)}); err == nil {
		t.Error("an untrusted certificate was accepted")
	}
}

func TestDialSaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	addr := testserver.SharedZooKeeper(t).Addr()
	for want, cfg := range map[string]Config{
		"no servers":          {},
		"refused":             {Servers: []string{"127.0.0.1:1"}},
		"negative":            {Servers: []string{addr}, Timeout: -1},
		"needs a Login":       {Servers: []string{addr}, Private: true},
		"begins with a slash": {Servers: []string{addr}, Chroot: "x"},
	} {
		if _, err := Dial(soon(t), cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	expect.Be(t, expect.Err(Dial(ctx, Config{Servers: []string{addr}})), context.Canceled, "with a context that has ended")
}

func TestAttemptIsNoLongerThanTheSession(t *testing.T) {
	t.Parallel()
	for timeout, most := range map[time.Duration]time.Duration{
		400 * time.Millisecond: 2 * time.Second, // a busy machine may need that
		4 * time.Second:        4 * time.Second,
		time.Minute:            10 * time.Second,
	} {
		patience := timeout / beatPart
		for range 20 {
			patience = longerTimeout(patience, timeout)
		}
		if patience != most {
			t.Errorf("in the end %v, for a session of %v", patience, timeout)
		}
	}
}

func TestManyGoroutinesOnOneSession(t *testing.T) {
	t.Parallel()
	c := shared(t)
	dir := place(t, c)
	var wg sync.WaitGroup
	for range 1000 {
		wg.Go(func() {
			e, err := c.CreateAndList(soon(t), dir+"/n-", nil)
			if err != nil || !slices.Contains(e.Children, strings.TrimPrefix(e.Path, dir+"/")) {
				t.Errorf("create: %q, %v", e.Path, err)
				return
			}
			expect.OK(t, c.Delete(soon(t), e.Path, -1), "delete")
		})
	}
	wg.Wait()
	if names, stat, err := c.Children(soon(t), dir); err != nil || len(names) > 0 || stat.Cversion != 2000 {
		t.Errorf("left: %q, %+v, %v", names, stat, err)
	}
}

// Writes that fail prove nothing, and stand in for no heartbeat.
func TestHeartbeatsBesideFailingWrites(t *testing.T) {
	t.Parallel()
	const timeout = 12 * time.Second
	c := dial(t, Config{Servers: []string{testserver.SharedZooKeeper(t).Addr()}, Timeout: timeout})
	missing, first := place(t, c)+"/missing", c.Deadline()
	eventually(t, "the session is confirmed", func() bool {
		// On a busy machine the server may be silent for too long.
		if err := c.Delete(soon(t), missing, -1); !errors.Is(err, ErrNoNode) && !errors.Is(err, ErrConnectionLoss) {
			t.Fatal(err)
		}
		return c.Deadline().After(first)
	})
}
