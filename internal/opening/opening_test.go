package opening

import (
	"context"
	"errors"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
)

// serve starts a server that handles each connection by f.
func serve(t *testing.T, f func(net.Conn)) (addr string) {
	t.Helper()
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go f(conn)
		}
	}()
	return l.Addr().String()
}

func greets(text string) func(net.Conn) {
	return func(c net.Conn) { _, _ = c.Write([]byte(text)) }
}

// answers answers the first message, and closes the connection.
func answers(text string) func(net.Conn) {
	return func(c net.Conn) {
		defer c.Close()
		if _, err := c.Read(make([]byte, 100)); err == nil {
			_, _ = c.Write([]byte(text))
		}
	}
}

func TestSpeaks(t *testing.T) {
	for _, test := range []struct {
		what string
		addr string
		want string
	}{
		{"a greeting of MySQL", serve(t, greets("J\x00\x00\x00\x0a8.0.36\x00")), "MySQL"},
		{"an error of MySQL", serve(t, greets("\x17\x00\x00\x00\xff\x10\x04Too many connections")), "MySQL"},
		{"a Redis with a password", serve(t, answers("-NOAUTH Authentication required.\r\n")), "Redis"},
		{"HTTP", serve(t, answers("HTTP/1.0 400 Bad Request\r\n")), "HTTP"},
		{"a server of no kind", serve(t, answers("220 smtp.example ESMTP\r\n")), ""},
		{"a server that says nothing", serve(t, func(net.Conn) {}), ""},
		{"a server that closes", serve(t, func(c net.Conn) { c.Close() }), ""},
		{"no server", "127.0.0.1:1", ""},
	} {
		if got := Speaks(t.Context(), test.addr); got != test.want {
			t.Errorf("%s: got %q; want %q", test.what, got, test.want)
		}
	}
}

// An open that would wait for ever ends when another kind of server is seen, and names it.
func TestAnotherKindOfServer(t *testing.T) {
	t.Parallel()
	addr := serve(t, answers("-ERR wrong number of arguments\r\n"))
	for scheme, name := range map[string]string{"mysql": "MySQL", "rediss": "TLS", "zks": "TLS"} {
		driver.Register(scheme, func(ctx context.Context, _ *url.URL) (driver.Backend, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		})
		_, err := Open(context.Background(), scheme+"://user:s3cr3t@"+addr+"/app")
		if want := "the server at " + addr + " speaks Redis, not " + name + "; want another port, or a URL such as redis://" + addr; err == nil || err.Error() != want {
			t.Errorf("got %v; want %q", err, want)
		}
	}
}

// A server is asked what it speaks while there is time for an answer.
func TestFirstLook(t *testing.T) {
	t.Parallel()
	expect.Equal(t, firstLook(context.Background()), 2*time.Second, "without a deadline")
	for after, most := range map[time.Duration]time.Duration{time.Hour: 2 * time.Second, 2 * time.Second: time.Second, 0: 0} {
		ctx, cancel := context.WithTimeout(context.Background(), after)
		defer cancel()
		if got := firstLook(ctx); got > most || after == time.Hour && got < most {
			t.Errorf("with %v left: %v; want %v", after, got, most)
		}
	}
}

// An error says each thing once, on one line, and remains what it is.
func TestPlainErrors(t *testing.T) {
	for _, test := range []struct {
		err   string
		addrs []string
		want  string
	}{
		{"xlock: open x://h:1/0: EOF", nil, "EOF"},
		{"pglock: open: failed to connect:\n\th:1: tls error\n\th:1: no \"app\"\n", nil, `failed to connect: h:1: tls error; h:1: no "app"`},
		{"no answer; is it TLS?; is it TLS?", nil, "no answer; is it TLS?"},
		{"dial tcp 127.0.0.1:1: connect: connection refused", []string{"h:1"}, "nothing listens at h:1 (connection refused); is the server started, and is this its port?"},
		{"a: connection refused; b: connection refused", []string{"a:1", "b:1"}, "a: connection refused; b: connection refused"},
		{"dial tcp: lookup h: no such host", []string{"h:1"}, `there is no such host as "h"; is the name right, and known to this machine's DNS?`},
	} {
		why := errors.New(test.err)
		got := plain(why, test.addrs)
		expect.Be(t, got, why, "the error")
		if got.Error() != test.want || strings.Contains(got.Error(), "\n") {
			t.Errorf("%q: got %q; want %q", test.err, got, test.want)
		}
	}
}
