package faultproxy

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
)

// echo is a server that answers each line with itself, and remembers it.
type echo struct {
	addr string
	mu   sync.Mutex
	seen []string
}

func newEcho(t *testing.T) *echo {
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
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
	c := must.Get(net.Dial("tcp", addr))(t)
	t.Cleanup(func() { c.Close() })
	return &caller{c, bufio.NewReader(c)}
}

// send sends a line and returns the answer.
func (c *caller) send(line string) (string, error) { return c.sendFor(time.Minute, line) }

// sendFor is send for an answer that is waited for no longer than d, once the line has been sent.
func (c *caller) sendFor(d time.Duration, line string) (string, error) {
	c.conn.SetDeadline(time.Now().Add(time.Minute))
	if _, err := io.WriteString(c.conn, line+"\n"); err != nil {
		return "", err
	}
	c.conn.SetReadDeadline(time.Now().Add(d))
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
	expect.Equal(t, p.Lost(), 2, "were lost")
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
	peer, gone := dial(t, p.Addr()), dial(t, p.Addr())
	p.Delay(300 * time.Millisecond)
	began := time.Now()
	peer.mustPass(t, "late")
	if took := time.Since(began); took < 300*time.Millisecond {
		t.Errorf("a delayed request was answered after %v", took)
	}
	must.Get(io.WriteString(gone.conn, "from one that has gone\n"))(t)
	gone.conn.Close()
	e.arrives(t, "from one that has gone")
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
	p.Replicate()
	if _, err := replica.sendFor(200*time.Millisecond, "four"); err == nil {
		t.Error("a replica that has missed data keeps its connection")
	}
	client.mustPass(t, "five")
	replica = dial(t, p.Addr())
	replica.mustPass(t, "PSYNC ? -1")
	replica.mustPass(t, "six")
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

// arrives waits until the server has seen a line.
func (e *echo) arrives(t *testing.T, line string) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !e.saw(line); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%q never arrived", line)
		}
	}
}

// order returns the place of a line among those that the server has seen.
func (e *echo) order(line string) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i, seen := range e.seen {
		if seen == line {
			return i
		}
	}
	return -1
}

// A request that is held back arrives after requests of other connections that were sent
// later, in the order of its own connection, and though its sender has closed it.
func TestHeldBackRequestsArriveLate(t *testing.T) {
	e := newEcho(t)
	p := New(t, e.addr)
	c := must.Get(net.Dial("tcp", p.Addr()))(t)
	io.WriteString(c, "before\n")
	if line, err := bufio.NewReader(c).ReadString('\n'); line != "before\n" {
		t.Fatal(line, err)
	}
	p.HoldBack("late", time.Hour)
	io.WriteString(c, "late\n")
	for p.Held() == 0 {
		time.Sleep(time.Millisecond)
	}
	io.WriteString(c, "later\n")
	c.Close()
	dial(t, p.Addr()).mustPass(t, "new")
	if e.saw("late") {
		t.Error("it was not held back")
	}
	p.Deliver()
	e.arrives(t, "later")
	if e.order("late") < e.order("new") || e.order("later") < e.order("late") {
		t.Errorf("order at the server: late %d, later %d, new %d", e.order("late"), e.order("later"), e.order("new"))
	}
	dial(t, p.Addr()).mustPass(t, "late")
	for p.Held() > 0 {
		time.Sleep(time.Millisecond)
	}
}

// Its sender hears nothing until the request has arrived, and then the end.
func TestHeldBackRequestsHaveNoAnswer(t *testing.T) {
	e := newEcho(t)
	p := New(t, e.addr)
	peer := dial(t, p.Addr())
	peer.mustPass(t, "one")
	p.HoldBack("late", time.Hour)
	peer.mustBeSilent(t, e, "late")
	p.Cut()
	if got, err := peer.send("more"); err == nil {
		t.Errorf("after a cut: %q", got)
	}
	for p.Held() > 0 {
		time.Sleep(time.Millisecond)
	}

	c := must.Get(net.Dial("tcp", p.Addr()))(t)
	defer c.Close()
	p.HoldBack("late", time.Millisecond)
	io.WriteString(c, "late\n")
	c.SetReadDeadline(time.Now().Add(time.Minute))
	if got, err := io.ReadAll(c); len(got) > 0 || err != nil || !e.saw("late") {
		t.Errorf("%q, %v, arrived: %v", got, err, e.saw("late"))
	}
}

// Some senders of a storm's late requests see silence, others the end of the connection; all
// requests arrive, and never more than heldAtOnce are under way.
func TestStormHoldsBack(t *testing.T) {
	e := newEcho(t)
	p := New(t, e.addr)
	p.Late(time.Hour)
	p.Storm(1, 1, "x")
	var silent, ended []string
	for i := 0; i < 500 && p.Held() < heldAtOnce; i++ {
		lost, late, line := p.Lost(), p.HeldBack(), fmt.Sprint("x", i)
		c, err := net.Dial("tcp", p.Addr())
		must.OK(t, err)
		defer c.Close()
		io.WriteString(c, line+"\n")
		for p.Lost() == lost { // each request of this storm is, or is late
			time.Sleep(time.Millisecond)
		}
		if p.HeldBack() == late {
			continue
		}
		c.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
		if _, err = c.Read(make([]byte, 1)); err == io.EOF {
			ended = append(ended, line)
		} else {
			silent = append(silent, line)
		}
	}
	if len(silent) == 0 || len(ended) == 0 || p.Held() != heldAtOnce {
		t.Errorf("silence for %q, the end for %q, %d held back", silent, ended, p.Held())
	}
	dial(t, p.Addr()).mustPass(t, "y")
	p.Deliver()
	for _, line := range append(silent, ended...) {
		e.arrives(t, line)
	}
}

// A port that has connections is kept, too: or else another server of this machine could be given it,
// and clients would reach that. Refuse fails the test if it can't keep the port.
func TestRefuseKeepsAPortWithConnections(t *testing.T) {
	p := New(t, newEcho(t).addr)
	dial(t, p.Addr()).mustPass(t, "one")
	p.Refuse()
	if c, err := net.Dial("tcp", p.Addr()); err == nil {
		t.Errorf("connected from %v to %v", c.LocalAddr(), c.RemoteAddr())
	}
}

func TestRetargetEndsConnections(t *testing.T) {
	old, next := newEcho(t), newEcho(t)
	p := New(t, old.addr)
	c := dial(t, p.Addr())
	c.mustPass(t, "one")
	p.Retarget(next.addr)
	if got, err := c.send("two"); err == nil {
		t.Errorf("the old connection answers %q", got)
	}
	dial(t, p.Addr()).mustPass(t, "three")
	if old.saw("three") || !next.saw("three") {
		t.Error("the line has not reached the new server")
	}
}

// A connection to the old server that is made beside Retarget does not live on.
func TestRetargetBesideANewConnection(t *testing.T) {
	old := newEcho(t)
	p := New(t, old.addr)
	client, ours := net.Pipe()
	server := must.Get(net.Dial("tcp", old.addr))(t)
	p.Retarget(newEcho(t).addr)
	p.connect(ours, server, old.addr)
	if _, err := client.Write([]byte("late\n")); err == nil {
		if line, err := bufio.NewReader(client).ReadString('\n'); err == nil {
			t.Errorf("it answers %q", line)
		}
	}
}
