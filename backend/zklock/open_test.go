package zklock

import (
	"context"
	"crypto/sha1"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/faultproxy"
	"github.com/distlock/distlock/internal/testkit/locktest"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testcert"
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
	expect.Be(t, expect.Err(Open(t.Context(), "etcd://h")), driver.ErrInvalid, "another scheme")
}

func TestOpenSaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	srv := testserver.SharedZooKeeper(t)
	locktest.OpenFails(t, Open, srv.URL()+"/not/there", true, "chroot /not/there does not exist")
	locktest.OpenFails(t, Open, "zk://u:hunter2@127.0.0.1:1,127.0.0.1:2/?timeout=30s", false, "none of 127.0.0.1:1, 127.0.0.1:2 ", "refused")
	locktest.OpenFails(t, Open, "zks://"+srv.Addr()+"?timeout=30s", false, srv.Addr(), "TLS")
	silent := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer silent.Close()
	locktest.OpenFails(t, Open, "zk://"+silent.Addr().String()+"?timeout=300ms", false, silent.Addr().String(), "no answer within 300ms")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	expect.Be(t, expect.Err(Open(ctx, srv.URL())), context.Canceled, "with a context that has ended")
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
		expect.Equal(t, roundUp(ttl), want, ttl)
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
		if _, err := b.Inspect(t.Context(), r.Name); !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), user) {
			t.Errorf("inspect: %v", err)
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
	b := must.Get(Open(t.Context(), "zk://"+p.Addr()+"?timeout=2m"))(t)
	must.OK(t, b.Close())
}

// digestOf returns the id of a user in an ACL.
func digestOf(user, password string) string {
	sum := sha1.Sum([]byte(user + ":" + password))
	return user + ":" + base64.StdEncoding.EncodeToString(sum[:])
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	must.OK(t, os.WriteFile(path, []byte(text), 0o600))
}

// An administrator gives the rights to the chroot to a new password, or the servers take only the new one. Programs read it
// from its file. Nothing is lost, and nothing must be restarted.
func TestPasswordIsRotated(t *testing.T) {
	t.Parallel()
	const before, after = "first-s3cret", "second-s3cret"
	for kind, rotation := range map[string]func(t *testing.T, chroot string) (addr string, rotate func()){
		"acl": func(t *testing.T, chroot string) (string, func()) {
			addr := testserver.SharedZooKeeper(t).Addr()
			setACL(t, addr, 0x1f, "", digestOf("app", before), chroot)
			return addr, func() { setACL(t, addr, 0x1f, "app:"+before, digestOf("app", after), chroot) }
		},
		"login": func(t *testing.T, _ string) (string, func()) {
			var valid atomic.Value
			valid.Store(before)
			gate := loginGate(t, testserver.SharedZooKeeper(t).Addr(), func(login string) bool { return login == "app:"+valid.Load().(string) })
			p := faultproxy.New(t, gate)
			return p.Addr(), func() { valid.Store(after); p.Cut() }
		},
	} {
		for _, acl := range []string{"open", "creator"} {
			if kind+acl == "logincreator" {
				continue // the nodes are the first password's, which these servers refuse
			}
			t.Run(kind+"/"+acl, func(t *testing.T) {
				t.Parallel()
				chroot := "/rotation-" + driver.NewOwner()
				makeNode(t, admin(t), chroot, "", zk.Persistent)
				addr, rotate := rotation(t, chroot)
				file := filepath.Join(t.TempDir(), "password")
				writeFile(t, file, before+"\n")
				outlive(t, patiently("zk://app@"+addr+chroot+"?acl="+acl+"&password_file="+url.QueryEscape(file)), func() {
					rotate()
					writeFile(t, file, after+"\n")
				})
			})
		}
	}
}

func outlive(t *testing.T, url string, change func()) {
	t.Helper()
	locktest.Outlive(t, true, func() driver.Backend { return must.Get(Open(t.Context(), url))(t) }, func(*locktest.Programs) { change() })
}

// A certificate that ends is renewed on the disk under its program.
func TestLongCertificateIsRenewed(t *testing.T) {
	t.Parallel()
	srv := testserver.ZooKeeper(t, testserver.ZooKeeperOptions{TLS: true, ClientCert: true})
	own := must.Get(testcert.Own())(t)
	ends := time.Now().Add(30 * time.Second).Truncate(time.Second) // a busy machine needs some of that to begin
	brief := must.Get(own.Sign(func(c *x509.Certificate) { c.NotAfter = ends }))(t)
	dir := t.TempDir()
	files := must.Get(brief.Write(dir))(t)
	p := faultproxy.New(t, srv.SecureAddr())
	outlive(t, "zks://"+p.Addr()+"?timeout=2m&ca="+url.QueryEscape(own.Pair.Files(t).Cert)+"&cert="+url.QueryEscape(files.Cert)+"&key="+url.QueryEscape(files.Key), func() {
		watcher := open(t, "zks://"+p.Addr()+"?ca="+url.QueryEscape(own.Pair.Files(t).Cert)+"&cert="+url.QueryEscape(files.Cert)+"&key="+url.QueryEscape(files.Key))
		acquire(t, watcher, request("", driver.Exclusive))
		time.Sleep(time.Until(ends.Add(time.Second)))
		p.Cut()
		eventually(t, "an error names the file and the end of its certificate", func() bool {
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			_, err := watcher.Acquire(ctx, request("", driver.Exclusive))
			return err != nil && !driver.Final(err) && strings.Contains(err.Error(), "the certificate in "+files.Cert+" ended at ")
		})
		renewed, err := own.Sign(nil)
		if err == nil {
			_, err = renewed.Write(dir)
		}
		must.OK(t, err)
	})
}

func TestCredentials(t *testing.T) {
	t.Parallel()
	srv := testserver.SharedZooKeeper(t)
	var calls atomic.Int32
	opts := &OpenOptions{Credentials: func(context.Context) (string, string, error) {
		calls.Add(1)
		return "ann", "s3cret", nil
	}}
	b := must.Get(OpenWith(t.Context(), patiently(srv.URL()+"?acl=creator"), opts))(t)
	defer b.Close()
	r := request("", driver.Exclusive)
	acquire(t, b, r)
	if calls.Load() == 0 {
		t.Error("the credentials were not asked")
	}
	other := open(t, strings.Replace(srv.URL(), "zk://", "zk://ann:s3cret@", 1)+"?acl=creator")
	r2 := request(r.Name, driver.Exclusive)
	refused(t, other, r2, driver.ErrHeld)
	release(t, other, r2)
	release(t, b, r)
	if _, err := OpenWith(t.Context(), strings.Replace(srv.URL(), "zk://", "zk://ann:hunter2@", 1), opts); !errors.Is(err, driver.ErrInvalid) || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("two logins: %v", err)
	}
	sealed := &OpenOptions{Credentials: func(context.Context) (string, string, error) { return "", "", errors.New("the vault is sealed") }}
	if _, err := OpenWith(t.Context(), patiently(srv.URL()), sealed); err == nil || errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), "the vault is sealed") {
		t.Errorf("no login: %v", err)
	}
}

// ZooKeeper is made anew without its data: holds are lost, and the same client goes on.
func TestServersWithoutTheirData(t *testing.T) {
	t.Parallel()
	srv := testserver.ZooKeeper(t, testserver.ZooKeeperOptions{})
	b := open(t, srv.URL())
	r := request("a/b", driver.Exclusive)
	r.TTL = 6 * time.Second
	lost := make(chan struct{})
	r.OnLost = func() { close(lost) }
	acquire(t, b, r)
	waiter := request(r.Name, driver.Exclusive)
	waiter.TTL = r.TTL
	refused(t, b, waiter, driver.ErrHeld)
	srv.LoseData()
	signalled(t, "the hold is lost", lost)
	if errs := b.Renew(t.Context(), []driver.Hold{r.Hold}); !errors.Is(errs[0], driver.ErrLost) {
		t.Errorf("renew: %v", errs[0])
	}
	eventually(t, "the waiter gets the lock", func() bool {
		_, err := b.Acquire(t.Context(), waiter)
		return err == nil
	})
	release(t, b, waiter)
}
