package zklock

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/faultproxy"
	"github.com/distlock/distlock/internal/testkit/testserver"
	"github.com/distlock/distlock/internal/zk"
)

func TestURLs(t *testing.T) {
	file := filepath.Join(t.TempDir(), "password")
	writeFile(t, file, "hunter2")
	for raw, want := range map[string]string{
		"zk://":                                "zk://localhost:2181/",
		"zk://b,a:1/app/locks/":                "zk://a:1,b:2181/app/locks",
		"zks://u:p%40@h/x?timeout=1s":          "zks://h:2181/x",
		"zk://u:p@h?acl=creator":               "zk://h:2181/",
		"zk://[::1]:7,h/":                      "zk://[::1]:7,h:2181/",
		"zk://h/a//b":                          "",
		"zk://h/../b":                          "",
		"zk://h/zookeeper":                     "",
		"zk://h/zookeeper/quota":               "",
		"zk://h/%0A":                           "",
		"zk://h:0":                             "",
		"zk://h,:port":                         "",
		"zk://h,,g":                            "",
		"zk:h":                                 "",
		"zk://h?acl=creator":                   "",
		"zk://h?acl=nobody":                    "",
		"zk://:hunter2@h":                      "",
		"zk://u%3Av:hunter2@h":                 "",
		"zk://u:hunter2@h?colour=red":          "",
		"zk://u:hunter2/2@h":                   "",
		"zk://h?ca=/x":                         "",
		"zk://u:p@h?password_file=/dev/null":   "",
		"zk://u@h?password_file=/dev/null":     "", // it is empty
		"zk://u@h?password_file=/no/such/file": "",
		"zk://h?password_file=" + file:         "",
		"zk://u@h?password_file=" + file:       "zk://h:2181/",
		"zks://h?ca=/does/not/exist":           "",
		"zk://h?timeout=never":                 "",
	} {
		u, err := driver.ParseURL(raw)
		var o *serverOptions
		if err == nil {
			o, err = readURL(u, nil)
		}
		switch {
		case want == "" && (!errors.Is(err, driver.ErrInvalid) || strings.Contains(err.Error(), "hunter2")):
			t.Errorf("%s: %v, want ErrInvalid without the password", raw, err)
		case want != "" && (err != nil || o.name != want):
			t.Errorf("%s: %+v, %v, want %s", raw, o, err, want)
		}
	}
	if _, err := Open(t.Context(), "etcd://h"); !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("another scheme: %v", err)
	}
}

// failsToOpen expects an error with these words and without the password.
func failsToOpen(t *testing.T, url string, final bool, words ...string) {
	t.Helper()
	b, err := Open(t.Context(), url)
	if err == nil {
		b.Close()
		t.Errorf("%s was opened", url)
		return
	}
	if errors.Is(err, driver.ErrInvalid) != final {
		t.Errorf("%v: ErrInvalid %v, want %v", err, !final, final)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%v\nlacks %q", err, w)
		}
	}
	if strings.Contains(err.Error(), "hunter2") {
		t.Errorf("%v: contains the password", err)
	}
}

func TestOpenSaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	srv := testserver.SharedZooKeeper(t)
	failsToOpen(t, srv.URL()+"/not/there", true, "chroot /not/there does not exist")
	failsToOpen(t, "zk://u:hunter2@127.0.0.1:1,127.0.0.1:2/?timeout=30s", false, "none of 127.0.0.1:1, 127.0.0.1:2 ", "refused")
	failsToOpen(t, "zks://"+srv.Addr()+"?timeout=30s", false, srv.Addr(), "TLS")
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	failsToOpen(t, "zk://"+silent.Addr().String()+"?timeout=300ms", false, silent.Addr().String(), "no answer within 300ms")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Open(ctx, srv.URL()); !errors.Is(err, context.Canceled) {
		t.Errorf("with a context that has ended: %v", err)
	}
}

// Open learns the server's bounds for a session timeout.
func TestBoundsOfTheTTL(t *testing.T) {
	t.Parallel()
	srv := testserver.ZooKeeper(t, testserver.ZooKeeperOptions{MinSession: time.Minute, MaxSession: 3 * time.Minute})
	b := open(t, srv.URL())
	if c := b.Caps(); c.MinTTL != 30*time.Second || c.MaxTTL != 90*time.Second {
		t.Errorf("from %v to %v", c.MinTTL, c.MaxTTL)
	}
	long := request("", driver.Exclusive)
	long.TTL = b.caps.MaxTTL + 1
	if err := refused(t, b, long, driver.ErrInvalid); !strings.Contains(err.Error(), "maxSessionTimeout") {
		t.Errorf("a TTL above the maximum: %v", err)
	}
	for _, ttl := range []time.Duration{b.caps.MinTTL, 45_678 * time.Millisecond, b.caps.MaxTTL} {
		r := request("", driver.Exclusive)
		r.TTL = ttl
		g := acquire(t, b, r)
		if g.TTL < ttl || g.TTL > 3*ttl {
			t.Errorf("a TTL of %v became %v", ttl, g.TTL)
		}
		if errs := b.Renew(t.Context(), []driver.Hold{r.Hold}); errs[0] != nil {
			t.Errorf("renew for %v: %v", ttl, errs[0])
		}
		more := r.Hold
		more.TTL = 2 * ttl
		if errs := b.Renew(t.Context(), []driver.Hold{more}); !errors.Is(errs[0], driver.ErrUnsupported) {
			t.Errorf("renew for more: %v", errs[0])
		}
	}
}

func TestRoundUp(t *testing.T) {
	for ttl, want := range map[time.Duration]time.Duration{
		300 * time.Millisecond: 300 * time.Millisecond, 301 * time.Millisecond: 310 * time.Millisecond,
		99*time.Millisecond + 1: 100 * time.Millisecond, 10 * time.Second: 10 * time.Second, 10001 * time.Millisecond: 11 * time.Second,
		30 * time.Second: 30 * time.Second, 2*time.Minute + 1: 130 * time.Second,
	} {
		if got := roundUp(ttl); got != want {
			t.Errorf("%v becomes %v, want %v", ttl, got, want)
		}
	}
}

// With acl=creator only the user who made a node has access to it.
func TestACL(t *testing.T) {
	t.Parallel()
	srv := testserver.SharedZooKeeper(t)
	owner := open(t, strings.Replace(srv.URL(), "zk://", "zk://ann:s3cret@", 1)+"?acl=creator")
	r := request("", driver.Exclusive)
	acquire(t, owner, r)
	other := request(r.Name, driver.Exclusive)
	for user, b := range map[string]*Backend{
		"the URL has no user":               open(t, srv.URL()),
		`the user "ann" with this password`: open(t, strings.Replace(srv.URL(), "zk://", "zk://ann:hunter2@", 1)),
	} {
		for _, queue := range []bool{true, false} {
			other.Queue = queue
			err := refused(t, b, other, driver.ErrInvalid)
			if !strings.Contains(err.Error(), user) || !strings.Contains(err.Error(), pathOf(r.Name)) || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("%v\nlacks the user or the path", err)
			}
		}
		if err := b.Release(t.Context(), r.Hold); err == nil || driver.Final(err) || errors.Is(err, driver.ErrLost) || !strings.Contains(err.Error(), user) {
			t.Errorf("release: %v", err)
		}
	}
	release(t, owner, r)
}

// A lock below a chroot is the same as one without a chroot on the full path.
func TestChroot(t *testing.T) {
	t.Parallel()
	srv := testserver.SharedZooKeeper(t)
	op := admin(t)
	root := "/test-" + driver.NewOwner()
	makeNode(t, op, root+"/app", "", zk.Persistent)
	below, above := open(t, srv.URL()+root+"/app"), open(t, srv.URL())
	r := request("orders/555", driver.Exclusive)
	acquire(t, below, r)
	far := request(root[1:]+"/app/orders/555", driver.Exclusive)
	far.Queue = false
	refused(t, above, far, driver.ErrHeld)
	var names []string
	if err := below.List(t.Context(), "", func(name string) bool { names = append(names, name); return true }); err != nil || strings.Join(names, " ") != "orders/555" {
		t.Errorf("%q, %v", names, err)
	}
	release(t, below, r)
	acquire(t, above, far)
}

// On a slow network the shortest session ends before its first request: Open retries.
func TestOpenWhereShortSessionsEnd(t *testing.T) {
	t.Parallel()
	srv := testserver.SharedZooKeeper(t) // with sessions of 0.4 s
	p := faultproxy.New(t, srv.Addr())
	p.Delay(time.Second)
	time.AfterFunc(1500*time.Millisecond, func() { p.Delay(0) })
	b, err := Open(t.Context(), "zk://"+p.Addr()+"?timeout=1m")
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
}
