package redisconn

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/expect"
)

// scriptedServer is a server whose answers the test gives.
type scriptedServer struct {
	t     *testing.T
	conns chan *fakeConn // one after the other
	made  atomic.Int64
}

// fakeConn is the server's end of a connection. It reads all that comes.
type fakeConn struct {
	net.Conn
	t        *testing.T
	commands chan string // their last words
}

func newScriptedServer(t *testing.T) *scriptedServer {
	return &scriptedServer{t: t, conns: make(chan *fakeConn, 100)}
}

func (f *scriptedServer) dial(context.Context, string, string) (net.Conn, error) {
	f.made.Add(1)
	ours, theirs := net.Pipe()
	c := &fakeConn{theirs, f.t, make(chan string, 10_000)}
	go func() {
		for r := newReader(theirs); ; {
			command, err := r.next()
			if err != nil {
				close(c.commands)
				return
			}
			words := Texts(command)
			c.commands <- words[len(words)-1]
		}
	}()
	f.conns <- c
	return ours, nil
}

// gets waits for a command whose last word is this.
func (c *fakeConn) gets(word string) {
	c.t.Helper()
	if got, ok := <-c.commands; got != word {
		c.t.Errorf("the server has got %q (%v), want %q", got, ok, word)
	}
}

func (c *fakeConn) says(text string) { c.Write([]byte(text)) }

// isOpen reports whether the client has not ended the connection, and has sent nothing more.
func (c *fakeConn) isOpen() bool {
	synctest.Wait()
	select {
	case word, ok := <-c.commands:
		if ok {
			c.t.Errorf("the server has got %q, and nobody wants that", word)
		}
		return ok
	default:
		return true
	}
}

// answeredBy returns a dialer to servers that answer as they are told: with what stands in the protocol, not at all if that is empty, or
// by the end of the connection. conn counts the connections.
func answeredBy(answer func(conn int, words []string) string) func(context.Context, string, string) (net.Conn, error) {
	conns := 0
	return func(context.Context, string, string) (net.Conn, error) {
		ours, theirs := net.Pipe()
		conns++
		conn := conns
		go func() {
			defer theirs.Close()
			for r := newReader(theirs); ; {
				command, err := r.next()
				if err != nil {
					return
				}
				switch text := answer(conn, Texts(command)); text {
				case "":
				case cut:
					return
				default:
					theirs.Write([]byte(text + "\r\n"))
				}
			}
		}()
		return ours, nil
	}
}

// cut is an answer that ends the connection.
const cut = "cut"

// fakeTimeout is how long a client of a scriptedServer waits for an answer.
const fakeTimeout = time.Minute

// withFake tests a client of a scriptedServer, in virtual time.
func withFake(t *testing.T, test func(t *testing.T, f *scriptedServer, s *Server)) {
	synctest.Test(t, func(t *testing.T) {
		f := newScriptedServer(t)
		s := NewServer(Options{Addr: "fake:1", Timeout: fakeTimeout, Dialer: f.dial})
		defer s.Close()
		test(t, f, s)
		s.Close()
		for len(f.conns) > 0 {
			(<-f.conns).Close()
		}
	})
}

// call is a command under way.
type call chan Answer

// ask sends a command, and returns once that has come as far as it gets.
func ask(ctx context.Context, s *Server, word string) call {
	c := make(call, 1)
	go func() {
		reply, err := s.Do(ctx, []string{"GET", word})
		c <- Answer{reply, err}
	}()
	synctest.Wait()
	return c
}

func (c call) is(t *testing.T, want string) {
	t.Helper()
	if a := <-c; a.Err != nil || a.Reply != want {
		t.Errorf("the answer is %v, %v; want %q", a.Reply, a.Err, want)
	}
}

// isUnsent wants an error that proves that nothing was written.
func (c call) isUnsent(t *testing.T, why error) {
	t.Helper()
	err := MarkUnsent((<-c).Err)
	expect.Be(t, err, driver.ErrUnsent)
	expect.Be(t, err, why)
}

// isUnknown wants an error that leaves the outcome unknown.
func (c call) isUnknown(t *testing.T, why error) *UnansweredError {
	t.Helper()
	err := (<-c).Err
	expect.Be(t, err, why)
	if errors.Is(MarkUnsent(err), driver.ErrUnsent) {
		t.Errorf("%v says that nothing was written", err)
	}
	u := (*UnansweredError)(nil)
	errors.As(err, &u)
	return u
}

func isOver(done <-chan struct{}) bool {
	synctest.Wait()
	select {
	case <-done:
		return true
	default:
		return false
	}
}

// inTime is a context that ends after a time.
func inTime(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}
