package redislock

import (
	"context"
	"crypto/x509"
	"errors"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testcert"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// outlives shows that a held lease, a waiter, an Unlock and an election get over a moment in which the server lets
// nobody in. fault begins it, and mend ends it. why stands in the errors meanwhile.
func outlives(t *testing.T, open func() *Backend, fault, mend func(), why ...string) {
	t.Helper()
	one, two := clientOn(t, open()), clientOn(t, open())
	ctx := t.Context()
	held, passed := mustLock(t, one, "held"), mustLock(t, one, "passed")
	waited := make(chan *distlock.Lease, 1)
	go func() { waited <- mustLock(t, two, "passed") }()
	terms := make(chan string, 9)
	reign, abdicate := context.WithCancel(ctx)
	defer abdicate()
	lead := func(ctx context.Context, c *distlock.Client, who string) {
		err := c.Election("elected").Lead(ctx, func(term context.Context) error {
			terms <- who
			<-term.Done()
			return nil
		})
		if ctx.Err() == nil {
			t.Errorf("candidate %s: %v", who, err)
			terms <- who + " has gone"
		}
	}
	go lead(reign, one, "one")
	if who := <-terms; who != "one" {
		t.Fatalf("%s leads", who)
	}
	candidacy, end := context.WithCancel(ctx)
	defer end()
	go lead(candidacy, two, "two")
	eventually(t, "both wait", func() bool { return waiters(t, one, "passed") > 0 && waiters(t, one, "elected") > 0 })

	fault()
	_, err := two.Mutex("other").TryLock(ctx)
	if !errors.Is(err, distlock.ErrUnavailable) {
		t.Errorf("meanwhile: %v, want ErrUnavailable", err)
	}
	for _, words := range why {
		if err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("meanwhile: %v, want %q", err, words)
		}
	}
	unlocked := make(chan error, 1)
	go func() { unlocked <- passed.Unlock(ctx) }()
	if err := <-unlocked; err != nil && !errors.Is(err, distlock.ErrUnavailable) {
		t.Errorf("an Unlock meanwhile: %v", err)
	}
	mend()

	l := <-waited
	if err := l.Unlock(ctx); err != nil {
		t.Errorf("the waiter: %v", err)
	}
	if err := errors.Join(held.Err(), held.Extend(ctx, time.Minute), held.Unlock(ctx)); err != nil {
		t.Errorf("the holder: %v", err)
	}
	select {
	case who := <-terms:
		t.Errorf("%s, and nobody has resigned", who)
	default:
	}
	abdicate()
	if who := <-terms; who != "two" {
		t.Errorf("%s leads after one", who)
	}
}

func clientOn(t *testing.T, b *Backend) *distlock.Client {
	t.Helper()
	c := must.Get(distlock.New(b, nil))(t)
	t.Cleanup(func() { c.Close() })
	return c
}

// mustLock locks a mutex, which may take a while on a busy machine.
func mustLock(t *testing.T, c *distlock.Client, name string) *distlock.Lease {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), tooLong)
	defer cancel()
	l, err := c.Mutex(name).Lock(ctx)
	if err != nil {
		t.Errorf("lock %s: %v", name, err)
	}
	return l
}

func waiters(t *testing.T, c *distlock.Client, name string) int {
	t.Helper()
	info := must.Get(c.Inspect(t.Context(), name))(t)
	return len(info.Waiters)
}

// lockedOut is for how long the server lets nobody in.
const lockedOut = 4 * time.Second

// rotation changes the password of a user at a server, and cuts the user's connections.
func rotation(t *testing.T, srv *testserver.RedisServer, user, password string) {
	mustDo(t, srv, "ACL", "SETUSER", user, "resetpass", ">"+password)
	mustDo(t, srv, "CLIENT", "KILL", "USER", user)
}

const refusedPassword = "the server refuses this user or password"

func TestPasswordInAFile(t *testing.T) {
	t.Parallel()
	srv := testserver.SharedRedis(t)
	for _, layout := range []string{"layout=string", "layout=redisson"} {
		t.Run(layout, func(t *testing.T) {
			t.Parallel()
			u, name := userURL(t, layout, srv)
			path := filepath.Join(t.TempDir(), "password")
			write(t, path, "pw\n")
			u.User, u.RawQuery = url.User(name), layout+"&prefix="+name+"&password_file="+path
			open := func() *Backend { return openAt(t, u.String(), Options{}) }
			outlives(t, open, func() {
				rotation(t, srv, name, "pw2")
				time.Sleep(lockedOut)
			}, func() { write(t, path, "pw2\n") }, refusedPassword)
		})
	}
}

func TestCredentialsOfAFunction(t *testing.T) {
	t.Parallel()
	srv := testserver.SharedRedis(t)
	u, name := userURL(t, "", srv)
	u.User, u.RawQuery = nil, "prefix="+name
	var password atomic.Pointer[string]
	set := func(s string) { password.Store(&s) }
	set("pw")
	open := func() *Backend {
		b, err := OpenWith(t.Context(), u.String(), &OpenOptions{Credentials: func(context.Context) (string, string, error) {
			if *password.Load() == "" {
				return "", "", errors.New("the vault is sealed")
			}
			return name, *password.Load(), nil
		}})
		return opened(t, b, err)
	}
	outlives(t, open, func() {
		set("")
		rotation(t, srv, name, "pw2")
		time.Sleep(lockedOut)
	}, func() { set("pw2") }, "the vault is sealed")
}

// While logins fail, a function is neither called without end, nor by each of many callers.
func TestCredentialsAreBounded(t *testing.T) {
	t.Parallel()
	srv := testserver.SharedRedis(t)
	for _, says := range []string{refusedPassword, "the vault is silent"} {
		u, name := userURL(t, "", srv)
		u.User = nil
		var locked atomic.Bool
		var calls atomic.Int32
		b, err := OpenWith(t.Context(), u.String(), &OpenOptions{Credentials: func(ctx context.Context) (string, string, error) {
			calls.Add(1)
			if _, bounded := ctx.Deadline(); !bounded {
				t.Error("a call has no end")
			}
			if locked.Load() && says != refusedPassword {
				return "", "", errors.New(says)
			}
			return name, "pw", nil
		}})
		b = opened(t, b, err)
		locked.Store(true)
		began := time.Now()
		rotation(t, srv, name, "another")
		calls.Store(0)
		ctx, cancel := context.WithCancel(t.Context())
		var callers sync.WaitGroup
		for range 8 { // one sends directly, and the others through one connection
			callers.Go(func() {
				for ctx.Err() == nil {
					b.Acquire(ctx, request("", driver.Exclusive))
				}
			})
		}
		eventually(t, "some logins have failed", func() bool { return calls.Load() > 4 })
		if n, seconds := calls.Load(), time.Since(began).Seconds(); float64(n) > 10*seconds {
			t.Errorf("%s: %d logins in %.1f s", says, n, seconds)
		}
		if _, err := b.Acquire(ctx, request("", driver.Exclusive)); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v; want %q", err, says)
		}
		cancel()
		callers.Wait()
		locked.Store(false)
		rotation(t, srv, name, "pw")
		eventually(t, "the login is back", func() bool {
			_, err := b.Acquire(t.Context(), request("", driver.Exclusive))
			return err == nil
		})
	}
}

// The password of all users of a server without users.
func TestLongPasswordOfAServer(t *testing.T) {
	t.Parallel()
	srv := testserver.Redis(t, "--requirepass", "pw")
	path := filepath.Join(t.TempDir(), "password")
	write(t, path, "pw")
	open := func() *Backend { return openAt(t, srv.URL()+"?password_file="+path, Options{}) }
	outlives(t, open, func() {
		c := raw(t, srv.Addr()).Conn()
		defer c.Close()
		for _, command := range [][]any{{"AUTH", "pw"}, {"CONFIG", "SET", "requirepass", "pw2"}, {"CLIENT", "KILL", "TYPE", "normal"}, {"CLIENT", "KILL", "TYPE", "pubsub"}} {
			if err := c.Do(t.Context(), command...).Err(); err != nil {
				t.Errorf("%q: %v", command, err)
			}
		}
		time.Sleep(lockedOut)
	}, func() { write(t, path, "pw2") }, refusedPassword)
}

// The sentinels have a password of their own, which changes as well.
func TestLongPasswordOfSentinels(t *testing.T) {
	t.Parallel()
	g := testserver.RedisSentinel(t, testserver.RedisOptions{})
	name := "u" + driver.NewOwner()
	set := func(password string) {
		for _, s := range g.Sentinels() {
			mustDo(t, s, "ACL", "SETUSER", name, "on", "resetpass", ">"+password, "~*", "&*", "+@all")
			mustDo(t, s, "CLIENT", "KILL", "USER", name)
		}
	}
	path := filepath.Join(t.TempDir(), "password")
	write(t, path, "pw")
	set("pw")
	b := openAt(t, sentinelURL(g)+"?sentinel_user="+name+"&sentinel_password_file="+path, Options{})
	set("pw2")
	if _, err := b.client.All(t.Context()); err == nil || driver.Final(err) || !strings.Contains(err.Error(), "sentinel_password") {
		t.Errorf("the sentinels refuse the old password: %v", err)
	}
	acquire(t, b, request("", driver.Exclusive))
	write(t, path, "pw2")
	eventually(t, "the sentinels answer again", func() bool {
		_, err := b.client.All(t.Context())
		return err == nil
	})
}

// A client's certificate is renewed on disk, after it has ended.
func TestLongCertificateIsRenewed(t *testing.T) {
	t.Parallel()
	own := must.Get(testcert.Own())(t)
	f, addr, dir := own.Files(t), testserver.FreeAddr(t), t.TempDir()
	_, port, _ := net.SplitHostPort(addr)
	srv := testserver.Redis(t, "--tls-port", port, "--tls-cert-file", f.Cert, "--tls-key-file", f.Key, "--tls-ca-cert-file", f.Cert, "--tls-auth-clients", "yes")
	issue := func(ends time.Time) (files testcert.Files) {
		p, err := own.Sign(func(c *x509.Certificate) { c.NotAfter = ends })
		if err == nil {
			files, err = p.Write(dir)
		}
		if err != nil {
			t.Error(err)
		}
		return files
	}
	ends := time.Now().Add(30 * time.Second)
	files := issue(ends)
	open := func() *Backend {
		return openAt(t, "rediss://"+addr+"?ca="+f.Cert+"&cert="+files.Cert+"&key="+files.Key, Options{})
	}
	outlives(t, open, func() {
		time.Sleep(time.Until(ends) + 2*time.Second) // its end is written in seconds
		mustDo(t, srv, "CLIENT", "KILL", "TYPE", "normal")
		mustDo(t, srv, "CLIENT", "KILL", "TYPE", "pubsub")
	}, func() { issue(time.Now().Add(time.Hour)) }, files.Cert, ends.Format("2006-01-02T"))
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Error(err)
	}
}
