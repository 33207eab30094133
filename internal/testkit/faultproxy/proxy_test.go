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

// caller is a connection to an echo.
type caller struct {
	conn    net.Conn
	answers *bufio.Reader
}

func dial(t *testing.T, addr string) *caller {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return &caller{c, bufio.NewReader(c)}
}

// send sends a line and returns the answer.
func (c *caller) send(line string) (string, error) { return c.sendFor(time.Minute, line) }

// sendFor is send for an answer that is waited for no longer than d.
func (c *caller) sendFor(d time.Duration, line string) (string, error) {
	c.conn.SetDeadline(time.Now().Add(d))
	if _, err := io.WriteString(c.conn, line+"\n"); err != nil {
		return "", err
	}
	answer, err := c.answers.ReadString('\n')
	return strings.TrimSpace(answer), err
}

func (c *caller) mustPass(t *testing.T, line string) {
	t.Helper()
	if got, err := c.send(line); got != line || err != nil {
		t.Errorf("%q came back as %q, %v", line, got, err)
	}
}

// mustBeSilent fails unless the line is neither answered nor seen by the server.
func (c *caller) mustBeSilent(t *testing.T, e *echo, line string) {
	t.Helper()
	if got, err := c.sendFor(200*time.Millisecond, line); !errors.Is(err, os.ErrDeadlineExceeded) || e.saw(line) {
		t.Errorf("%q came back as %q, %v, arrived: %v; want silence", line, got, err, e.saw(line))
	}
}

func TestLoseOne(t *testing.T) {
	e := newEcho(t)
	p := New(t, e.addr)
	peer := dial(t, p.Addr())
	peer.mustPass(t, "one")

	p.LoseReply("two")
	peer.mustPass(t, "one again")
	if got, err := peer.send("two"); err != io.EOF || !e.saw("two") {
		t.Errorf("a lost reply: %q, %v, arrived: %v", got, err, e.saw("two"))
	}
	peer = dial(t, p.Addr())
	peer.mustPass(t, "two")

	p.LoseRequest("three")
	if got, err := peer.send("three"); err == nil || e.saw("three") {
		t.Errorf("a lost request: %q, %v, arrived: %v", got, err, e.saw("three"))
	}
	dial(t, p.Addr()).mustPass(t, "three")
	if p.Lost() != 2 {
		t.Errorf("%d were lost, want 2", p.Lost())
	}
}

func TestSilenceAndCut(t *testing.T) {
	e := newEcho(t)
	p := New(t, e.addr)
	peer := dial(t, p.Addr())
	peer.mustPass(t, "one")
	p.Silence()
	peer.mustBeSilent(t, e, "two")
	p.Pass()
	if _, err := peer.send("three"); err == nil {
		t.Error("a connection with a gap goes on")
	}
	peer = dial(t, p.Addr())
	peer.mustPass(t, "four")
	p.Cut()
	if _, err := peer.send("five"); err == nil {
		t.Error("a cut connection goes on")
	}
}

func TestSeverSilencesSomeClients(t *testing.T) {
	e := newEcho(t)
	p := New(t, e.addr)
	early, other := dial(t, p.Addr()), dial(t, p.Addr())
	early.mustPass(t, "one")
	other.mustPass(t, "two")
	var first net.Conn
	p.Sever(func(client net.Conn) bool {
		if first == nil {
			first = client
		}
		return client == first
	})
	early.mustBeSilent(t, e, "three")
	other.mustPass(t, "four")
	p.Sever(func(net.Conn) bool { return true })
	dial(t, p.Addr()).mustBeSilent(t, e, "five") // a new connection of a severed client
	p.Pass()
	dial(t, p.Addr()).mustPass(t, "six")
}

func TestDelayedRequestsArrive(t *testing.T) {
	e := newEcho(t)
	p := New(t, e.addr)
	peer := dial(t, p.Addr())
	p.Delay(300 * time.Millisecond)
	if _, err := peer.sendFor(200*time.Millisecond, "late"); err == nil {
		t.Error("a delayed request was answered in time")
	}
	e.arrives(t, "late")
}

func TestUnreplicateHitsReplicasOnly(t *testing.T) {
	e := newEcho(t)
	p := New(t, e.addr)
	replica, client := dial(t, p.Addr()), dial(t, p.Addr())
	replica.mustPass(t, "PSYNC ? -1")
	client.mustPass(t, "one")
	p.Unreplicate()
	if got, err := replica.sendFor(200*time.Millisecond, "two"); err == nil {
		t.Errorf("a replica hears %q", got)
	}
	e.arrives(t, "two")
	client.mustPass(t, "three")
}

func TestStormIsRepeatable(t *testing.T) {
	e := newEcho(t)
	run := func(seed uint64) (fates []bool) {
		p := New(t, e.addr)
		p.Storm(seed, 0.3, "x")
		peer := dial(t, p.Addr())
		for range 60 {
			_, err := peer.send("x")
			if fates = append(fates, err == nil); err != nil {
				peer = dial(t, p.Addr())
			}
		}
		dial(t, p.Addr()).mustPass(t, "y")
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
