package redislock

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"testing"

	"github.com/distlock/distlock/backend/redislock/internal/redisconn"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/must"
)

// relay stands between a backend and its servers, and hands on one command after the other. A test may look at each, and answer
// it otherwise.
type relay struct {
	dialer  func(ctx context.Context, network, addr string) (net.Conn, error) // to servers; nil: net.Dialer
	through atomic.Pointer[handler]                                           // nil: as the server answers
	trips   atomic.Int64                                                      // how often something was sent
}

// handler returns the answer to a command. send lets the server execute one. An error that is no *redisconn.ReplyError ends the connection.
type handler func(command []string, send func(command ...string) redisconn.Answer) redisconn.Answer

// handle lets h answer from now on.
func (r *relay) handle(h handler) { r.through.Store(&h) }

// before calls f ahead of each command.
func (r *relay) before(f func(command []string)) {
	r.handle(func(command []string, send func(...string) redisconn.Answer) redisconn.Answer {
		f(command)
		return send(command...)
	})
}

// openRelayed returns a backend at addr by URL, behind a relay that hands on all.
func openRelayed(t testing.TB, addr string, opts Options) (*Backend, *relay) {
	t.Helper()
	r := &relay{}
	return openDialing(t, ownURL(addr, opts)+"&timeout="+tooLong.String(), r.dial), r
}

// openDialing is Open by another dialer.
func openDialing(t testing.TB, url string, dial func(ctx context.Context, network, addr string) (net.Conn, error)) *Backend {
	t.Helper()
	to := must.Get(parseURL(must.Get(driver.ParseURL(url))(t)))(t)
	to.server.Dialer = dial
	b, err := to.open(t.Context(), to.connect())
	return opened(t, b, err)
}

func (r *relay) dial(_ context.Context, network, addr string) (net.Conn, error) {
	ours, theirs := net.Pipe()
	go r.serve(theirs, redisconn.NewServer(redisconn.Options{Network: network, Addr: addr, Dialer: r.dialer, Timeout: tooLong}))
	return relayed{ours, r}, nil
}

type relayed struct {
	net.Conn
	*relay
}

func (c relayed) Write(b []byte) (int, error) {
	c.trips.Add(1)
	return c.Conn.Write(b)
}

// serve answers commands until a connection ends.
func (r *relay) serve(client net.Conn, server *redisconn.Server) {
	defer client.Close()
	defer server.Close()
	var conn *redisconn.DedicatedConn
	send := func(command ...string) redisconn.Answer {
		var err error
		if conn == nil {
			conn, err = server.Dedicated(context.Background())
		}
		if err != nil {
			return redisconn.Answer{Err: err}
		}
		return conn.DoAll([][]string{command})[0]
	}
	for in := bufio.NewReader(client); ; {
		command, err := readCommand(in)
		if err != nil {
			return
		}
		var a redisconn.Answer
		if h := r.through.Load(); h != nil {
			a = (*h)(command, send)
		} else {
			a = send(command...)
		}
		if _, is := redisconn.AsReply(a.Err); a.Err != nil && !is {
			return
		}
		if _, err := client.Write(appendAnswer(nil, a)); err != nil {
			return
		}
	}
}

func readCommand(in *bufio.Reader) (command []string, err error) {
	var words, size int
	if _, err = fmt.Fscanf(in, "*%d\r\n", &words); err != nil {
		return nil, err
	}
	for range words {
		if _, err = fmt.Fscanf(in, "$%d\r\n", &size); err != nil {
			return nil, err
		}
		word := make([]byte, size+2)
		if _, err = io.ReadFull(in, word); err != nil {
			return nil, err
		}
		command = append(command, string(word[:size]))
	}
	return command, nil
}

func appendAnswer(b []byte, a redisconn.Answer) []byte {
	re, _ := redisconn.AsReply(a.Err)
	if re == nil {
		re, _ = a.Reply.(*redisconn.ReplyError) // within a list
	}
	switch r := a.Reply.(type) {
	case int64:
		b = fmt.Appendf(b, ":%d\r\n", r)
	case string:
		b = fmt.Appendf(b, "$%d\r\n%s\r\n", len(r), r)
	case []any:
		b = fmt.Appendf(b, "*%d\r\n", len(r))
		for _, item := range r {
			b = appendAnswer(b, redisconn.Answer{Reply: item})
		}
	default:
		if re != nil {
			return fmt.Appendf(b, "-%s\r\n", re.Text)
		}
		b = append(b, "$-1\r\n"...)
	}
	return b
}
