package etcdlock

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/locktest"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testcert"
	"github.com/distlock/distlock/internal/testkit/testserver"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// programs hold a lock, wait for one and for an election, while rotate replaces what they show to the server.
func programs(t *testing.T, b, other driver.Backend, rotate func()) {
	t.Helper()
	client := func(b driver.Backend) *distlock.Client {
		c := must.Get(distlock.New(b, locktest.Patient()))(t)
		t.Cleanup(func() { c.Close() })
		return c
	}
	locks, others := client(b), client(other)
	lock := func(c *distlock.Client, name string) *distlock.Lease {
		t.Helper()
		l := must.Get(c.Mutex(name).Lock(t.Context()))(t)
		return l
	}
	kept, blocked, elected := lock(locks, "kept"), lock(others, "waited for"), lock(others, "leader")
	ended := make(chan error, 2)
	go func() { _, err := locks.Mutex("waited for").Lock(t.Context()); ended <- err }()
	go func() {
		err := locks.Election("leader").Lead(t.Context(), func(context.Context) error { return errElected })
		if errors.Is(err, errElected) {
			err = nil
		}
		ended <- err
	}()
	eventually(t, "both wait", func() bool {
		for _, name := range []string{"waited for", "leader"} {
			if info, err := others.Inspect(t.Context(), name); err != nil || info.WaiterCount == 0 {
				return false
			}
		}
		return true
	})
	rotate()
	for _, l := range []*distlock.Lease{blocked, elected} {
		expect.OK(t, l.Unlock(t.Context()))
	}
	for range 2 {
		expect.OK(t, <-ended, "a wait has ended")
	}
	expect.OK(t, kept.Extend(t.Context(), 10*time.Minute), "the holder")
	expect.OK(t, kept.Unlock(t.Context()))
}

// A password that is replaced, in the server and in the file, is used without a restart.
func TestPasswordIsRotated(t *testing.T) {
	t.Parallel()
	srv := testserver.Etcd(t, testserver.EtcdOptions{Password: "s3cret"})
	own := testserver.EtcdGrant{Prefix: "locks/", Read: true, Write: true}
	for _, way := range []string{"file", "function", "own client"} {
		t.Run(way, func(t *testing.T) {
			user := strings.ReplaceAll(way, " ", "")
			srv.AddUser(user, "first", own)
			file := filepath.Join(t.TempDir(), "password")
			write := func(password string) {
				must.OK(t, os.WriteFile(file, []byte(password+"\n"), 0o600))
			}
			write("first")
			credentials := func(context.Context) (string, string, error) {
				password, err := os.ReadFile(file)
				return user, strings.TrimSpace(string(password)), err
			}
			var b *Backend
			switch way {
			case "file":
				b = mustOpen(t, "etcd://"+user+"@"+srv.Addr()+"/locks?password_file="+url.QueryEscape(file))
			case "function":
				b = must.Get(OpenWith(t.Context(), patiently("etcd://"+srv.Addr()+"/locks"), &OpenOptions{Credentials: credentials}))(t)
			default:
				c := must.Get(clientv3.New(clientv3.Config{Endpoints: []string{srv.Addr()}, Logger: zap.NewNop(), DialOptions: LoginOptions(credentials)}))(t)
				t.Cleanup(func() { c.Close() })
				b = must.Get(newPatiently(t, c, &Options{Prefix: "locks/"}))(t)
			}
			programs(t, b, mustOpen(t, srv.URL()+"/locks"), func() {
				srv.SetPassword(user, "second")
				if err := b.Renew(t.Context(), []driver.Hold{request("kept", driver.Exclusive).Hold})[0]; err == nil || errors.Is(err, driver.ErrLost) || strings.Contains(err.Error(), "first") {
					t.Errorf("with the old password: %v", err)
				}
				write("second")
			})
		})
	}
}

func TestPasswordFiles(t *testing.T) {
	srv := testserver.Etcd(t, testserver.EtcdOptions{Password: "s3cret"})
	file := filepath.Join(t.TempDir(), "password")
	at := func(user string) string {
		return "etcd://" + user + srv.Addr() + "?password_file=" + url.QueryEscape(file)
	}
	openFails(t, "no file", at("root@"), true, "password_file", file)
	must.OK(t, os.WriteFile(file, []byte("s3cret\n"), 0o600))
	mustOpen(t, at("root@"))
	openFails(t, "two passwords", at("root:s3cret@"), true, "want one of them")
	openFails(t, "a password without a user", at(""), true, "want a user and a password")
	_, err := OpenWith(t.Context(), at("root@"), &OpenOptions{Credentials: func(context.Context) (string, string, error) { return "root", "s3cret", nil }})
	if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), "want one of them") {
		t.Errorf("a file and a function: %v", err)
	}
}

// Calls that are refused at the same time log in once.
func TestOneLoginForManyCalls(t *testing.T) {
	t.Parallel()
	srv := testserver.Etcd(t, testserver.EtcdOptions{Password: "s3cret"})
	srv.AddUser("ann", "x", testserver.EtcdGrant{Prefix: "k", Read: true, Write: true})
	var logins atomic.Int32
	began, goOn := make(chan struct{}), make(chan struct{})
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{srv.Addr()}, Logger: zap.NewNop(), DialOptions: LoginOptions(func(context.Context) (string, string, error) {
		if logins.Add(1) == 2 {
			close(began)
			<-goOn
		}
		return "ann", "x", nil
	})})
	must.OK(t, err)
	defer c.Close()
	get := func() error { _, err := c.Get(t.Context(), "k"); return err }
	must.OK(t, get())
	endTokens(t, srv, "ann")
	const calls = 8
	errs := make(chan error, calls)
	for range calls {
		go func() { errs <- get() }()
	}
	<-began
	time.Sleep(50 * time.Millisecond) // a call that is slower finds the new token, or logs in once more
	close(goOn)
	for range calls {
		expect.OK(t, <-errs)
	}
	if n := logins.Load(); n > calls/2 {
		t.Errorf("%d logins for %d calls", n, calls)
	}
}

// doorman lets clients with a certificate that is valid by its clock pass to a server.
type doorman struct {
	net.Listener
	ca    string // the file of its certificate
	to    string
	clock atomic.Int64 // how much it is fast, in ns
	conns chan net.Conn
}

func newDoorman(t *testing.T, to string, authority *testcert.Authority) *doorman {
	t.Helper()
	pair, err := authority.Sign(func(*x509.Certificate) {})
	must.OK(t, err)
	d := &doorman{ca: pair.Files(t).Cert, to: to, conns: make(chan net.Conn, 1000)}
	d.Listener, err = tls.Listen("tcp", "127.0.0.1:0", &tls.Config{
		Certificates: []tls.Certificate{pair.TLS(t)}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: authority.Roots(), NextProtos: []string{"h2"},
		Time: func() time.Time { return time.Now().Add(time.Duration(d.clock.Load())) },
	})
	must.OK(t, err)
	t.Cleanup(func() { d.Close(); d.cut() })
	go func() {
		for {
			c, err := d.Accept()
			if err != nil {
				return
			}
			go d.pass(c)
		}
	}()
	return d
}

func (d *doorman) pass(c net.Conn) {
	defer c.Close()
	if c.(*tls.Conn).Handshake() != nil {
		return
	}
	out, err := net.Dial("tcp", d.to)
	if err != nil {
		return
	}
	defer out.Close()
	d.conns <- c
	go func() { io.Copy(out, c); out.Close() }()
	io.Copy(c, out)
}

// cut ends the connections that there are.
func (d *doorman) cut() {
	for {
		select {
		case c := <-d.conns:
			c.Close()
		default:
			return
		}
	}
}

// renewal is a client certificate in files, and a doorman who asks for it.
type renewal struct {
	t         *testing.T
	authority *testcert.Authority
	dir       string
	doorman   *doorman
	prefix    string
}

func newRenewal(t *testing.T) *renewal {
	t.Helper()
	authority := must.Get(testcert.NewAuthority())(t)
	d := newDoorman(t, testserver.SharedEtcd(t).Addr(), authority)
	return &renewal{t, authority, t.TempDir(), d, "/renewed" + driver.NewOwner()}
}

// write replaces the certificate in the files by one that ends then.
func (r *renewal) write(end time.Time) testcert.Files {
	r.t.Helper()
	pair := must.Get(r.authority.Sign(func(c *x509.Certificate) { c.NotAfter = end }))(r.t)
	files := must.Get(pair.Write(r.dir))(r.t)
	return files
}

func (r *renewal) url(f testcert.Files) string {
	return "etcds://" + r.doorman.Addr().String() + r.prefix + "?" + url.Values{"ca": {r.doorman.ca}, "cert": {f.Cert}, "key": {f.Key}}.Encode()
}

// A certificate that is renewed in its file is shown by the next connection, also after the old one has ended.
func TestCertificateIsRenewed(t *testing.T) {
	t.Parallel()
	r := newRenewal(t)
	files := r.write(time.Now().Add(time.Hour))
	b := mustOpen(t, r.url(files))
	programs(t, b, mustOpen(t, testserver.SharedEtcd(t).URL()+r.prefix), func() {
		r.write(time.Now().Add(3 * time.Hour))
		r.doorman.clock.Store(int64(2 * time.Hour))
		r.doorman.cut()
	})
}

// A client whose certificate has ended says which and when.
func TestCertificateHasEnded(t *testing.T) {
	t.Parallel()
	r := newRenewal(t)
	files := r.write(time.Now().Add(time.Hour))
	b := mustOpen(t, r.url(files))
	ended := time.Now().Add(-time.Minute)
	r.write(ended)
	r.doorman.cut()
	openFails(t, "an ended certificate", r.url(files)+"&timeout=90s", false, files.Cert, ended.Format(time.RFC3339))
	eventually(t, "the error names the certificate that has ended", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		_, err := b.Acquire(ctx, request("", driver.Exclusive))
		return err != nil && strings.Contains(err.Error(), files.Cert+" ended at ")
	})
}

// Certificates that live for 12 seconds, each renewed in time, while the network breaks.
func TestLongCertificatesOfSeconds(t *testing.T) {
	t.Parallel()
	const life = 12 * time.Second
	r := newRenewal(t)
	b := mustOpen(t, r.url(r.write(time.Now().Add(time.Hour))))
	programs(t, b, mustOpen(t, testserver.SharedEtcd(t).URL()+r.prefix), func() {
		for range 5 {
			r.write(time.Now().Add(life))
			r.doorman.cut()
			time.Sleep(life / 3)
		}
		r.write(time.Now().Add(time.Hour)) // what follows may take a busy machine longer
	})
}
