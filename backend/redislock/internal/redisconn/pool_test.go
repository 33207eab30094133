package redisconn

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/faultproxy"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testcert"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// Dedicated connections are used again, and no more than a few are in use.
func TestDedicatedConnections(t *testing.T) {
	withFake(t, func(t *testing.T, f *scriptedServer, s *Server) {
		var taken []*DedicatedConn
		for range maxDedicated {
			taken = append(taken, must.Get(s.Dedicated(t.Context()))(t))
		}
		for _, why := range []error{context.DeadlineExceeded, errNoneFree} {
			ctx := t.Context()
			if why != errNoneFree {
				ctx = inTime(t, time.Second)
			}
			_, err := s.Dedicated(ctx)
			expect.Be(t, MarkUnsent(err), driver.ErrUnsent)
			expect.Be(t, err, why)
		}
		taken[0].Close(false)
		taken[0] = must.Get(s.Dedicated(t.Context()))(t)
		if f.made.Load() != maxDedicated {
			t.Errorf("%d connections, want %d", f.made.Load(), maxDedicated)
		}
		s.Reconnect()
		for _, c := range append(taken, must.Get(s.Dedicated(t.Context()))(t)) {
			c.Close(false)
		}
		synctest.Wait()
		if len(s.wires) != 1 || f.made.Load() != maxDedicated+1 {
			t.Errorf("%d connections stay of %d, want the new one", len(s.wires), f.made.Load())
		}
	})
}

// eachProtocol tests a server without and with TLS, which a proxy reaches.
func eachProtocol(t *testing.T, test func(t *testing.T, s *Server, p *faultproxy.Proxy)) {
	f, secure := must.Get(testcert.Own())(t).Files(t), testserver.FreeAddr(t)
	_, port, _ := net.SplitHostPort(secure)
	plain := testserver.Redis(t, "--tls-port", port, "--tls-cert-file", f.Cert, "--tls-key-file", f.Key, "--tls-auth-clients", "no").Addr()
	for addr, config := range map[string]func() *tls.Config{plain: nil, secure: func() *tls.Config { return &tls.Config{InsecureSkipVerify: true} }} {
		p := faultproxy.New(t, addr)
		s := NewServer(Options{Addr: p.Addr(), TLS: config})
		defer s.Close()
		test(t, s, p)
	}
}

// An idle connection that the server has ended is not used.
func TestIdleConnectionsThatHaveEnded(t *testing.T) {
	eachProtocol(t, func(t *testing.T, s *Server, p *faultproxy.Proxy) {
		for range 5 {
			_, err := s.Do(t.Context(), []string{"PING"})
			expect.OK(t, err, "shared")
			c := must.Get(s.Dedicated(t.Context()))(t)
			expect.OK(t, c.DoAll([][]string{{"PING"}})[0].Err, "dedicated")
			c.Close(false)
			p.Cut()
		}
	})
}

// heldWrites is a connection whose writes return once release is closed, though the server has got them before.
type heldWrites struct {
	*net.TCPConn
	release chan struct{}
}

func (c heldWrites) Write(b []byte) (int, error) {
	n, err := c.TCPConn.Write(b)
	<-c.release
	return n, err
}

// Nor is it used by a goroutine that has written, and is late to see that all is answered.
func TestIdleConnectionThatEndsBesideItsWriter(t *testing.T) {
	p := faultproxy.New(t, testserver.Redis(t).Addr())
	release, dials := make(chan struct{}), 0
	s := NewServer(Options{Addr: p.Addr(), Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, addr)
		if dials++; err != nil || dials > 1 {
			return conn, err
		}
		return heldWrites{conn.(*net.TCPConn), release}, nil
	}})
	defer s.Close()
	_, err := s.Do(t.Context(), []string{"PING"})
	must.OK(t, err)
	p.Cut()
	a := make(call, 1)
	go func() {
		reply, err := s.Do(t.Context(), []string{"PING"})
		a <- Answer{reply, err}
	}()
	for queued := 0; queued == 0; {
		s.mux.mu.Lock()
		queued = len(s.mux.queue)
		s.mux.mu.Unlock()
		runtime.Gosched()
	}
	close(release)
	a.is(t, "PONG")
}

// A caller that is alone gives a slow answer to another goroutine to read. With TLS a read ends in the middle of that too.
func TestSlowAnswers(t *testing.T) {
	slow := `local t = redis.call('TIME'); local till = t[1] * 1000 + t[2] / 1000 + 120
		repeat t = redis.call('TIME') until t[1] * 1000 + t[2] / 1000 > till
		return ARGV[1]`
	eachProtocol(t, func(t *testing.T, s *Server, _ *faultproxy.Proxy) {
		for _, word := range []string{"a", "b"} {
			if reply, err := s.Do(t.Context(), []string{"ECHO", word}); err != nil || reply != word {
				t.Errorf("%v, %v", reply, err)
			}
			if reply, err := s.Do(t.Context(), []string{"EVAL", slow, "0", word}); err != nil || reply != word {
				t.Errorf("slow: %v, %v", reply, err)
			}
		}
	})
}

// A connection that has said more than it was asked is not used again: all later answers would be those to other commands.
func TestDedicatedConnectionThatSaysTooMuch(t *testing.T) {
	withFake(t, func(t *testing.T, f *scriptedServer, s *Server) {
		for _, answer := range []string{"+1\r\n+2\r\n", "+1\r\n"} {
			conn := must.Get(s.Dedicated(t.Context()))(t)
			go func() { (<-f.conns).says(answer) }()
			if got := conn.DoAll([][]string{{"GET"}})[0]; got.Reply != "1" {
				t.Errorf("%v, %v", got.Reply, got.Err)
			}
			conn.Close(false)
		}
		if len(s.wires) != 1 || f.made.Load() != 2 {
			t.Errorf("%d connections stay of %d", len(s.wires), f.made.Load())
		}
	})
}

// Nor is one that says more than to greet.
func TestGreetingThatSaysTooMuch(t *testing.T) {
	withFake(t, func(t *testing.T, f *scriptedServer, s *Server) {
		s.o.DB = 1
		a := ask(t.Context(), s, "a")
		c := <-f.conns
		c.gets("1")
		c.says("+OK\r\n+2\r\n")
		a.isUnsent(t, errUnasked)
		if c.isOpen() {
			t.Error("the connection stays")
		}
	})
}

// A silent subscription is asked for a sign of life, and is given up if there is none.
func TestSilentSubscription(t *testing.T) {
	withFake(t, func(t *testing.T, f *scriptedServer, s *Server) {
		events := make(chan Event, 10)
		began := time.Now()
		l := must.Get(s.Listen(t.Context(), func(e Event) { events <- e }))(t)
		c := <-f.conns
		c.gets("PING")
		c.says("+PONG\r\n")
		must.OK(t, l.Subscribe(false, []string{"a"}))
		c.gets("a")
		c.says("*3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n*3\r\n$7\r\nmessage\r\n$1\r\na\r\n$2\r\nhi\r\n")
		for _, want := range []Event{{Kind: Subscribed, Channel: "a"}, {Kind: Received, Channel: "a", Message: "hi"}} {
			if got := <-events; got != want {
				t.Errorf("%v; want %v", got, want)
			}
		}
		c.gets("PING")
		c.says("*2\r\n$4\r\npong\r\n$0\r\n\r\n")
		c.gets("PING")
		if e := <-events; e.Kind != Broken || time.Since(began) != 3*healthCheck {
			t.Errorf("%v after %v", e, time.Since(began))
		}
		l.Close()
	})
}

// A wrong password is remembered for a moment, and stands in no error.
func TestRefusedLogins(t *testing.T) {
	password := strings.Repeat("s3cret", 40)
	for _, text := range []string{
		"WRONGPASS no " + password, "ERR unknown command `AUTH`, with args beginning with: `default`, `" + password + "`",
		"ERR unknown command 'AUTH', with args beginning with: 'default' '" + password[:110] + "'", // of 128 characters at most
	} {
		withFake(t, func(t *testing.T, f *scriptedServer, s *Server) {
			asked := 0
			s.o.Credentials = func(context.Context) (string, string, error) {
				asked++
				return "", password, nil
			}
			for i := range 3 {
				a := ask(t.Context(), s, "x")
				if len(f.conns) > 0 {
					c := <-f.conns
					c.gets(password)
					c.says("-" + text + "\r\n")
				}
				err := (<-a).Err
				if _, is := AsReply(err); !is || strings.Contains(err.Error(), "s3cret") || !errors.As(err, &unwrittenError{}) {
					t.Errorf("%d: %v", i, err)
				}
			}
			if remembered := strings.HasPrefix(text, "WRONGPASS"); remembered != (asked == 1) {
				t.Errorf("%s: asked %d times", text, asked)
			}
		})
	}
}
