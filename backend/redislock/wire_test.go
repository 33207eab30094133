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
	"github.com/distlock/distlock/internal/testserver"
)

// A command that is too large for the buffers of a stalled connection does not keep
// its caller; what comes after it still finds the connection in order.
func TestStalledWrite(t *testing.T) {
	srv := testserver.Redis(t)
	b := openOwn(t, srv.Addr(), Options{})
	w := b.client.(*wire)
	large := strings.Repeat("x", 32<<20)
	srv.Pause()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	start := time.Now()
	_, err := w.do(ctx, []string{"ECHO", large})
	if !errors.Is(err, context.DeadlineExceeded) || time.Since(start) > 3*time.Second {
		t.Errorf("a large command: %v after %v", err, time.Since(start))
	}
	w.mu.Lock()
	first := w.conn
	w.mu.Unlock()
	srv.Resume()
	acquire(t, b, request("", driver.Exclusive))
	if w.conn != first {
		t.Error("the connection was given up")
	}
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
		t.Errorf("a certificate that nobody vouches for: %v", err)
	}
	to, err := readURL(u)
	if err != nil {
		t.Fatal(err)
	}
	to.tls.RootCAs = roots
	b, err := newBackend(&wire{target: to}, nil)
	b = opened(t, b, err)
	if want := "rediss://" + addr + "/0"; b.Caps().Name != want {
		t.Errorf("name %q, want %q", b.Caps().Name, want)
	}
	r := request("", driver.Exclusive)
	w := armWatch(t, b, r)
	defer w.Close()
	acquire(t, b, r)

	// A stalled answer is left to others to read.
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

func TestRepliesOfTheProtocol(t *testing.T) {
	client, server := net.Pipe()
	go func() {
		server.Write([]byte("*5\r\n:-7\r\n$3\r\na\r\n\r\n$-1\r\n*0\r\n-ERR no\r\n"))
		server.Close()
	}()
	c := newConn(client)
	reply, err := readReply(c.r)
	list, ok := reply.([]any)
	if err != nil || !ok || len(list) != 5 {
		t.Fatalf("%v, %v", reply, err)
	}
	if list[0] != int64(-7) || list[1] != "a\r\n" || list[2] != nil || len(list[3].([]any)) != 0 {
		t.Errorf("%#v", list)
	}
	if re, ok := list[4].(*replyError); !ok || !re.is("ERR") {
		t.Errorf("%#v", list[4])
	}
	if _, err := readReply(c.r); !errors.Is(err, io.EOF) {
		t.Errorf("after the end: %v", err)
	}
}

func TestErrorCodes(t *testing.T) {
	for _, c := range []struct {
		text, code string
		want       bool
	}{
		{"WRONGTYPE Operation against", "WRONGTYPE", true},
		{"ERR Error running script (call to f_1): @user_script:3: WRONGTYPE Operation against", "WRONGTYPE", true},
		{"ERR user_script:9: WRONGTYPE Operation", "WRONGTYPE", true},
		{"ERR the word WRONGTYPE", "WRONGTYPE", false},
		{"NOSCRIPT No matching script", "NOSCRIPT", true},
		{"NOSCRIPTS", "NOSCRIPT", false},
	} {
		if got := (&replyError{text: c.text}).is(c.code); got != c.want {
			t.Errorf("%q is %s: %v", c.text, c.code, got)
		}
	}
}
