package faultproxy

import (
	"bufio"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// echo is a server that answers each line with itself, and remembers it.
type echo struct {
	addr string
	mu   sync.Mutex
	seen []string
}

func newEcho(t *testing.T) *echo {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	e := &echo{addr: l.Addr().String()}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go e.serve(c)
		}
	}()
	return e
}

func (e *echo) serve(c net.Conn) {
	defer c.Close()
	for s := bufio.NewScanner(c); s.Scan(); {
		e.mu.Lock()
		e.seen = append(e.seen, s.Text())
		e.mu.Unlock()
		io.WriteString(c, s.Text()+"\n")
	}
}

func (e *echo) saw(line string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Contains(e.seen, line)
}

// dial returns a function that sends a line and returns the answer.
func dial(t *testing.T, addr string) func(line string) (string, error) {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	r := bufio.NewReader(c)
	return func(line string) (string, error) {
		c.SetDeadline(time.Now().Add(200 * time.Millisecond))
		if _, err := io.WriteString(c, line+"\n"); err != nil {
			return "", err
		}
		answer, err := r.ReadString('\n')
		return strings.TrimSpace(answer), err
	}
}

func mustPass(t *testing.T, send func(string) (string, error), line string) {
	t.Helper()
	if got, err := send(line); got != line || err != nil {
		t.Errorf("%q came back as %q, %v", line, got, err)
	}
}

func TestLoseOne(t *testing.T) {
	e := newEcho(t)
	p := New(t, e.addr)
	send := dial(t, p.Addr())
	mustPass(t, send, "one")

	p.LoseReply("two")
	mustPass(t, send, "one again")
	if got, err := send("two"); err != io.EOF || !e.saw("two") {
		t.Errorf("a lost reply: %q, %v, arrived: %v", got, err, e.saw("two"))
	}
	send = dial(t, p.Addr())
	mustPass(t, send, "two")

	p.LoseRequest("three")
	if got, err := send("three"); err == nil || e.saw("three") {
		t.Errorf("a lost request: %q, %v, arrived: %v", got, err, e.saw("three"))
	}
	mustPass(t, dial(t, p.Addr()), "three")
	if p.Lost() != 2 {
		t.Errorf("%d were lost, want 2", p.Lost())
	}
}

func TestSilenceAndCut(t *testing.T) {
	e := newEcho(t)
	p := New(t, e.addr)
	send := dial(t, p.Addr())
	mustPass(t, send, "one")
	p.Silence()
	if _, err := send("two"); !errors.Is(err, os.ErrDeadlineExceeded) || e.saw("two") {
		t.Errorf("in silence: %v, arrived: %v", err, e.saw("two"))
	}
	p.Pass()
	if _, err := send("three"); err == nil {
		t.Error("a connection with a gap goes on")
	}
	send = dial(t, p.Addr())
	mustPass(t, send, "four")
	p.Cut()
	if _, err := send("five"); err == nil {
		t.Error("a cut connection goes on")
	}
}

func TestSeverSilencesSomeClients(t *testing.T) {
	e := newEcho(t)
	p := New(t, e.addr)
	early, other := dial(t, p.Addr()), dial(t, p.Addr())
	mustPass(t, early, "one")
	mustPass(t, other, "two")
	var first net.Conn
	p.Sever(func(client net.Conn) bool {
		if first == nil {
			first = client
		}
		return client == first
	})
	if _, err := early("three"); !errors.Is(err, os.ErrDeadlineExceeded) || e.saw("three") {
		t.Errorf("severed: %v, arrived: %v", err, e.saw("three"))
	}
	mustPass(t, other, "four")
	p.Sever(func(net.Conn) bool { return true })
	if _, err := dial(t, p.Addr())("five"); !errors.Is(err, os.ErrDeadlineExceeded) || e.saw("five") {
		t.Errorf("a new connection of who is severed: %v, arrived: %v", err, e.saw("five"))
	}
	p.Pass()
	mustPass(t, dial(t, p.Addr()), "six")
}

func TestDelayedRequestsArrive(t *testing.T) {
	e := newEcho(t)
	p := New(t, e.addr)
	send := dial(t, p.Addr())
	p.Delay(300 * time.Millisecond)
	if _, err := send("late"); err == nil {
		t.Error("a delayed request was answered in time")
	}
	for deadline := time.Now().Add(5 * time.Second); !e.saw("late"); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("a delayed request never arrived")
		}
	}
}

func TestUnreplicateHitsReplicasOnly(t *testing.T) {
	e := newEcho(t)
	p := New(t, e.addr)
	replica, client := dial(t, p.Addr()), dial(t, p.Addr())
	mustPass(t, replica, "PSYNC ? -1")
	mustPass(t, client, "one")
	p.Unreplicate()
	if got, err := replica("two"); err == nil || !e.saw("two") {
		t.Errorf("a replica hears %q, %v", got, err)
	}
	mustPass(t, client, "three")
}

func TestStormIsRepeatable(t *testing.T) {
	e := newEcho(t)
	run := func(seed uint64) (fates []bool) {
		p := New(t, e.addr)
		p.Storm(seed, 0.3, "x")
		send := dial(t, p.Addr())
		for range 60 {
			_, err := send("x")
			if fates = append(fates, err == nil); err != nil {
				send = dial(t, p.Addr())
			}
		}
		mustPass(t, dial(t, p.Addr()), "y")
		return fates
	}
	a, b, c := run(1), run(1), run(2)
	if !slices.Equal(a, b) || slices.Equal(a, c) {
		t.Errorf("fates with seeds 1, 1, 2:\n%v\n%v\n%v", a, b, c)
	}
	if !slices.Contains(a, true) || !slices.Contains(a, false) {
		t.Errorf("no storm: %v", a)
	}
}
