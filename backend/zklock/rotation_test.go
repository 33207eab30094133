package zklock

import (
	"context"
	"crypto/sha1"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/faultproxy"
	"github.com/distlock/distlock/internal/testkit/testcert"
	"github.com/distlock/distlock/internal/testkit/testserver"
	"github.com/distlock/distlock/internal/zk"
)

// digestOf returns the id of a user in an ACL.
func digestOf(user, password string) string {
	sum := sha1.Sum([]byte(user + ":" + password))
	return user + ":" + base64.StdEncoding.EncodeToString(sum[:])
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
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

// outlive changes something under a holder, a waiter and a candidate.
func outlive(t *testing.T, url string, change func()) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c, err := distlock.Open(ctx, url, &distlock.Options{TTL: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	b, err := distlock.Open(ctx, url, &distlock.Options{TTL: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	var leases []*distlock.Lease
	for _, name := range []string{"held", "waited", "led"} {
		l, err := c.Mutex(name).Lock(ctx)
		if err != nil {
			t.Fatal(err)
		}
		leases = append(leases, l)
	}
	waited, led := make(chan error, 1), make(chan error, 2)
	go func() {
		l, err := b.Mutex("waited").Lock(ctx)
		if err == nil {
			err = l.Unlock(ctx)
		}
		waited <- err
	}()
	go func() {
		led <- b.Election("led").Lead(ctx, func(term context.Context) error { led <- nil; return errors.New("led enough") })
	}()
	for _, name := range []string{"waited", "led"} {
		eventually(t, "one waits for "+name, func() bool {
			info, err := c.Inspect(ctx, name)
			return err == nil && len(info.Waiters) == 1
		})
	}
	change()
	for _, l := range leases {
		eventually(t, "the lease is extended", func() bool { return l.Extend(ctx, time.Minute) == nil || l.Err() != nil })
		if err := l.Unlock(ctx); err != nil {
			t.Errorf("a holder: %v", err)
		}
	}
	for what, ends := range map[string]chan error{"the waiter": waited, "the candidate": led} {
		if err := <-ends; err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	for _, c := range []*distlock.Client{c, b} {
		l, err := c.Mutex("new").Lock(ctx)
		if err != nil {
			t.Fatalf("a new lock: %v", err)
		}
		if err := l.Unlock(ctx); err != nil {
			t.Error(err)
		}
	}
}

// A certificate that ends is renewed on the disk under its program.
func TestLongCertificateIsRenewed(t *testing.T) {
	t.Parallel()
	srv := testserver.ZooKeeper(t, testserver.ZooKeeperOptions{TLS: true, ClientCert: true})
	own, err := testcert.Own()
	if err != nil {
		t.Fatal(err)
	}
	ends := time.Now().Add(12 * time.Second).Truncate(time.Second)
	brief, err := own.Sign(func(c *x509.Certificate) { c.NotAfter = ends })
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	files, err := brief.Write(dir)
	if err != nil {
		t.Fatal(err)
	}
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
		if err != nil {
			t.Fatal(err)
		}
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
	b, err := OpenWith(t.Context(), patiently(srv.URL()+"?acl=creator"), opts)
	if err != nil {
		t.Fatal(err)
	}
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
	r.TTL = 3 * time.Second
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
