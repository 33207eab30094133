package redislock

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// A command that is too large for the buffers of a stalled connection does not keep
// its caller, nor spoil what comes after it.
func TestStalledWrite(t *testing.T) {
	t.Parallel()
	srv := testserver.Redis(t)
	b := patientOpeners[0].open(t, srv.Addr(), Options{})
	large := strings.Repeat("x", 32<<20)
	srv.Pause()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := b.client.Do(ctx, "", []string{"ECHO", large}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a large command: %v", err)
	}
	srv.Resume()
	acquire(t, b, request("", driver.Exclusive))
}

// tlsServer is a TLS entrance to a server.
func tlsServer(t *testing.T, target string) (addr string, roots *x509.CertPool) {
	ts := httptest.NewTLSServer(nil)
	t.Cleanup(ts.Close)
	roots = x509.NewCertPool()
	roots.AddCert(ts.Certificate())
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: ts.TLS.Certificates})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s, err := net.Dial("tcp", target)
			if err != nil {
				c.Close()
				continue
			}
			go func() { io.Copy(s, c); s.Close() }()
			go func() { io.Copy(c, s); c.Close() }()
		}
	}()
	return l.Addr().String(), roots
}

func TestTLS(t *testing.T) {
	srv := testserver.Redis(t, "--requirepass", "s3cret")
	addr, roots := tlsServer(t, srv.Addr())
	u, err := url.Parse("rediss://:s3cret@" + addr)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), u.String()); err == nil || driver.Final(err) {
		t.Errorf("a certificate of an unknown authority: %v", err)
	}
	to, err := parseURL(u)
	if err != nil {
		t.Fatal(err)
	}
	to.server.TLSConfig.RootCAs = roots
	b, err := NewConn(to.connect(), to.opts)
	b = opened(t, b, err)
	if want := "rediss://" + addr + "/0"; b.Caps().Name != want {
		t.Errorf("name %q, want %q", b.Caps().Name, want)
	}
	r := request("", driver.Exclusive)
	w := armWatch(t, b, r)
	defer w.Close()
	acquire(t, b, r)

	// An abandoned attempt is executed before its release.
	srv.Pause()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	late := request("", driver.Exclusive)
	if _, err := b.Acquire(ctx, late); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("acquire: %v", err)
	}
	srv.Resume()
	release(t, b, late)
	release(t, b, r)
	signalled(t, w)
}
