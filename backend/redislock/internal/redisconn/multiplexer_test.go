package redisconn

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// Each of many callers gets the answers to its own commands, which stand together.
func TestEachGetsItsOwnAnswers(t *testing.T) {
	s := NewServer(Options{Addr: testserver.SharedRedis(t).Addr()})
	defer s.Close()
	var callers sync.WaitGroup
	for g := range 64 {
		callers.Go(func() {
			for i := range 200 {
				word := fmt.Sprint(g, " ", i)
				if reply, err := s.Do(t.Context(), []string{"ECHO", word}); err != nil || reply != word {
					t.Errorf("%q, %v; want %q", reply, err, word)
				}
				got := s.DoAll(t.Context(), [][]string{{"SET", "echo", word}, {"GET", "echo"}, {"NONSENSE"}})
				if re, is := AsReply(got[2].Err); got[0].Reply != "OK" || got[1].Reply != word || !is || !re.UnknownCommand() {
					t.Errorf("%v; want %q", got, word)
				}
			}
		})
	}
	callers.Wait()
}

func TestSeveralOnTheirWay(t *testing.T) {
	withFake(t, func(t *testing.T, f *scriptedServer, s *Server) {
		a := ask(t.Context(), s, "a")
		b := ask(t.Context(), s, "b")
		c := <-f.conns
		c.gets("a")
		c.gets("b")
		c.says("+1\r\n+2\r\n")
		a.is(t, "1")
		b.is(t, "2")
		alone := ask(t.Context(), s, "alone")
		c.gets("alone")
		c.says("+3")
		c.says("\r\n")
		alone.is(t, "3")
	})
}

// A caller that gives up returns at once, whoever reads, and knows whether its command may have been written.
func TestGivingUp(t *testing.T) {
	withFake(t, func(t *testing.T, f *scriptedServer, s *Server) {
		ctx, cancel := context.WithCancel(t.Context())
		first := ask(ctx, s, "first")
		c := <-f.conns
		c.gets("first")
		c.says("+1\r\n")
		first.is(t, "1")
		alone := ask(ctx, s, "alone") // reads itself
		other := ask(t.Context(), s, "other")
		time.Sleep(minAnswerTime)
		hasty, hurry := context.WithCancel(t.Context())
		queued := ask(hasty, s, "queued") // behind a silent connection
		last := ask(t.Context(), s, "last")
		c.gets("alone")
		c.gets("other")
		hurry()
		queued.isUnsent(t, context.Canceled)
		cancel()
		began := time.Now()
		u := alone.isUnknown(t, context.Canceled)
		if took := time.Since(began); took > lookUp || u == nil || isOver(u.Done) {
			t.Fatalf("given up after %v: %v", took, u)
		}
		c.says("+2\r\n+3\r\n")
		other.is(t, "3")
		if !isOver(u.Done) {
			t.Error("the answer has come, and nobody was told")
		}
		next := <-f.conns // a caller gave up a silent one
		next.gets("last")
		next.says("+4\r\n")
		last.is(t, "4")
		ask(ctx, s, "none").isUnsent(t, context.Canceled)
		if c.isOpen() || !next.isOpen() {
			t.Error("the old connection stays, or the new one has gone")
		}
	})
}

// Commands that were given up before they were sent do not pile up before a silent server.
func TestGivenUpDoNotPileUp(t *testing.T) {
	withFake(t, func(t *testing.T, f *scriptedServer, s *Server) {
		ctx, cancel := context.WithCancel(t.Context())
		ask(t.Context(), s, "first")
		time.Sleep(minAnswerTime)
		var calls []call
		for range 1000 {
			calls = append(calls, ask(ctx, s, "more"))
		}
		cancel()
		for _, c := range calls {
			c.isUnsent(t, context.Canceled)
		}
		if n := len(s.mux.queue); n > 0 {
			t.Errorf("%d abandoned commands wait", n)
		}
	})
}

// What waits behind a silent connection for half of its time goes to another one. What was written stays. So it goes on while new ones die as well, until
// there are maxFormer of old.
func TestSilentConnectionIsReplaced(t *testing.T) {
	withFake(t, func(t *testing.T, f *scriptedServer, s *Server) {
		began := time.Now()
		first := ask(t.Context(), s, "first")
		time.Sleep(minAnswerTime)
		second := ask(inTime(t, 2*time.Second), s, "second")
		old, now := <-f.conns, <-f.conns
		if took := time.Since(began); took < time.Second || took > time.Second+2*minAnswerTime {
			t.Errorf("replaced after %v", took)
		}
		old.gets("first")
		now.gets("second")
		time.Sleep(minAnswerTime)
		third := ask(inTime(t, time.Hour), s, "third")
		time.Sleep(fakeTimeout / 2)
		for range 2 * maxFormer { // each gives up
			ask(inTime(t, fakeTimeout/50), s, "more")
			time.Sleep(fakeTimeout / 50)
		}
		if f.made.Load() != 1+maxFormer {
			t.Errorf("%d connections", f.made.Load())
		}
		u := second.isUnknown(t, context.DeadlineExceeded)
		old.says("+1\r\n")
		first.is(t, "1")
		if old.isOpen() || isOver(u.Done) {
			t.Error("the old connection stays, or what was written to the new one is given up")
		}
		next := <-f.conns // since there is room again
		next.gets("third")
		next.says("+3\r\n")
		third.is(t, "3")
		time.Sleep(fakeTimeout)
		if !isOver(u.Done) || now.isOpen() {
			t.Error("a silent connection does not end")
		}
	})
}

// A server that is silent for too long answers no more, and the next call goes to a new connection.
func TestTimeoutOfAnAnswer(t *testing.T) {
	withFake(t, func(t *testing.T, f *scriptedServer, s *Server) {
		began := time.Now()
		a := ask(t.Context(), s, "a")
		a.isUnknown(t, os.ErrDeadlineExceeded)
		if took := time.Since(began); took < fakeTimeout || took > fakeTimeout+time.Second {
			t.Errorf("after %v", took)
		}
		b := ask(t.Context(), s, "b")
		<-f.conns
		c := <-f.conns
		c.gets("b")
		c.says("+2\r\n")
		b.is(t, "2")
	})
}

// pausedConn pauses the process at the end of a read.
type pausedConn struct {
	net.Conn
	pause *time.Duration
}

func (c pausedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if err != nil {
		time.Sleep(*c.pause)
		*c.pause = 0
	}
	return n, err
}

// An answer that has come while the process was paused is read, however long that was.
func TestPauseOfTheProcess(t *testing.T) {
	for _, alone := range []bool{false, true} {
		withFake(t, func(t *testing.T, f *scriptedServer, s *Server) {
			pause := 3 * fakeTimeout
			s.o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
				c, err := f.dial(ctx, network, addr)
				return pausedConn{c, &pause}, err
			}
			first := ask(t.Context(), s, "first")
			c := <-f.conns
			c.gets("first")
			if alone { // the next one reads its answer itself
				c.says("+1\r\n")
				first.is(t, "1")
				first = ask(t.Context(), s, "next")
				c.gets("next")
			}
			time.Sleep(2 * fakeTimeout)
			c.says("+2\r\n")
			first.is(t, "2")
		})
	}
}

// The end of a connection leaves unknown what was written. What was not goes to the next connection.
func TestCutConnection(t *testing.T) {
	withFake(t, func(t *testing.T, f *scriptedServer, s *Server) {
		a, b := ask(t.Context(), s, "a"), ask(t.Context(), s, "b")
		time.Sleep(minAnswerTime)
		given := ask(inTime(t, time.Second), s, "given")
		c := <-f.conns
		c.gets("a")
		c.gets("b")
		c.says("$5\r\nhal")
		c.Close()
		a.isUnknown(t, io.EOF)
		b.isUnknown(t, io.EOF)
		next := <-f.conns
		next.gets("given")
		next.says("+3\r\n")
		given.is(t, "3")
	})
}

// All who wait for a connection share one attempt, and its error.
func TestDialErrorReachesAll(t *testing.T) {
	withFake(t, func(t *testing.T, f *scriptedServer, s *Server) {
		goOn := make(chan struct{})
		down := errors.New("down")
		s.o.Dialer = func(context.Context, string, string) (net.Conn, error) {
			f.made.Add(1)
			<-goOn
			return nil, down
		}
		var calls []call
		for range 100 {
			calls = append(calls, ask(t.Context(), s, "x"))
		}
		hasty := ask(inTime(t, time.Second), s, "hasty")
		hasty.isUnsent(t, context.DeadlineExceeded)
		close(goOn)
		for _, c := range calls {
			c.isUnsent(t, down)
		}
		if f.made.Load() > maxDials {
			t.Errorf("%d attempts", f.made.Load())
		}
		s.o.Dialer = f.dial
		a := ask(t.Context(), s, "a")
		c := <-f.conns
		c.gets("a")
		c.says("+1\r\n")
		a.is(t, "1")
	})
}

// A server may be silent while a connection is made, as a firewall is. A caller has its answer by the next one, and the first is closed
// if it comes late.
func TestSilentDialIsNotAwaited(t *testing.T) {
	withFake(t, func(t *testing.T, f *scriptedServer, s *Server) {
		var dials atomic.Int64
		goOn := make(chan struct{})
		s.o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			if dials.Add(1) == 1 {
				<-goOn
			}
			return f.dial(ctx, network, addr)
		}
		a := ask(inTime(t, 2*time.Second), s, "a")
		c := <-f.conns
		c.gets("a")
		c.says("+1\r\n")
		a.is(t, "1")
		close(goOn)
		if late := <-f.conns; late.isOpen() || !c.isOpen() || dials.Load() != 2 {
			t.Errorf("after %d attempts the late connection stays, or the one in use does not", dials.Load())
		}
		b := ask(t.Context(), s, "b")
		c.gets("b")
		c.says("+2\r\n")
		b.is(t, "2")
	})
}

// A connection that is made after its caller has given up, and the client was closed, is closed.
func TestConnectionOfNobodyIsClosed(t *testing.T) {
	withFake(t, func(t *testing.T, f *scriptedServer, s *Server) {
		goOn := make(chan struct{})
		s.o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			<-goOn
			return f.dial(ctx, network, addr)
		}
		ask(inTime(t, time.Second), s, "a").isUnsent(t, context.DeadlineExceeded)
		s.Close()
		close(goOn)
		if c := <-f.conns; c.isOpen() {
			t.Error("it stays")
		}
	})
}

// tornConn fails in the middle of a write.
type tornConn struct {
	net.Conn
	after int // bytes
}

func (c tornConn) Write(b []byte) (int, error) {
	n, _ := c.Conn.Write(b[:min(c.after, len(b))])
	return n, errTorn
}

var errTorn = errors.New("torn")

// If a write fails, what none of its bytes belong to is unsent, and nothing else is.
func TestTornWrite(t *testing.T) {
	size := len(appendCommand(nil, []string{"GET", "0"}))
	for written := range 3*size + 1 {
		withFake(t, func(t *testing.T, f *scriptedServer, s *Server) {
			goOn := make(chan struct{})
			s.o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
				<-goOn
				c, err := f.dial(ctx, network, addr)
				return tornConn{c, written}, err
			}
			var calls []call
			for i := range 3 {
				calls = append(calls, ask(t.Context(), s, fmt.Sprint(i)))
			}
			close(goOn)
			for i, c := range calls {
				if i*size < written {
					c.isUnknown(t, errTorn)
				} else {
					c.isUnsent(t, errTorn)
				}
			}
		})
	}
}

// A server that reads nothing gets no more than a bounded part, and callers that wait can give up.
func TestServerThatReadsNothing(t *testing.T) {
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer l.Close()
	s := NewServer(Options{Addr: l.Addr().String(), Timeout: time.Hour})
	defer s.Close()
	ctx, cancel := context.WithCancel(t.Context())
	large := string(make([]byte, 200<<10))
	var callers sync.WaitGroup
	for range 100 {
		callers.Go(func() {
			if _, err := s.Do(ctx, []string{"ECHO", large}); !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		})
	}
	m := s.mux
	for waiting := 0; waiting < 90; time.Sleep(time.Millisecond) {
		m.mu.Lock()
		waiting = len(m.queue)
		if m.current != nil && m.current.owed > maxOwed+len(large)+1000 {
			t.Fatalf("%d bytes are owed", m.current.owed)
		}
		m.mu.Unlock()
	}
	cancel()
	callers.Wait()
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.queue) > 0 {
		t.Errorf("%d wait", len(m.queue))
	}
}

// A connection that is of no use is not used again.
func TestUselessConnections(t *testing.T) {
	for text, why := range map[string]string{
		"HTTP/1.1 400 Bad Request\r\n":           "invalid reply",
		"$99999999999\r\n":                       "invalid reply",
		"+1\r\n+2\r\n":                           "",
		"-READONLY You can't write\r\n":          "READONLY",
		"-ERR max number of clients reached\r\n": "max number",
	} {
		withFake(t, func(t *testing.T, f *scriptedServer, s *Server) {
			a := ask(t.Context(), s, "a")
			c := <-f.conns
			c.gets("a")
			c.says(text)
			if err := (<-a).Err; fmt.Sprint(err) == "<nil>" != (why == "") || err != nil && !strings.Contains(err.Error(), why) {
				t.Errorf("%q: %v", text, err)
			}
			b := ask(t.Context(), s, "b")
			next := <-f.conns
			next.gets("b")
			next.says("+2\r\n")
			b.is(t, "2")
			if c.isOpen() {
				t.Errorf("%q: the connection stays", text)
			}
		})
	}
}

// A server that has no room for us has looked at nothing.
func TestNoRoom(t *testing.T) {
	withFake(t, func(t *testing.T, f *scriptedServer, s *Server) {
		a, b := ask(t.Context(), s, "a"), ask(t.Context(), s, "b")
		c := <-f.conns
		c.says("-ERR max number of clients reached\r\n")
		c.Close()
		for _, call := range []call{a, b} {
			if err := (<-call).Err; !Unexecuted(err) {
				t.Error(err)
			}
		}
	})
}

func TestCloseEndsAll(t *testing.T) {
	withFake(t, func(t *testing.T, f *scriptedServer, s *Server) {
		a := ask(t.Context(), s, "a")
		time.Sleep(minAnswerTime)
		b := ask(t.Context(), s, "b")
		s.Close()
		a.isUnknown(t, net.ErrClosed)
		b.isUnsent(t, ErrClientClosed)
		ask(t.Context(), s, "c").isUnsent(t, ErrClientClosed)
		synctest.Wait()
		if c := <-f.conns; len(s.wires) > 0 || f.made.Load() != 1 {
			c.gets("a")
			t.Errorf("%d connections are left of %d", len(s.wires), f.made.Load())
		}
	})
}
