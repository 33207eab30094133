package faultproxy

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"testing"
	"time"
)

// arrives waits until the server has seen a line.
func (e *echo) arrives(t *testing.T, line string) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !e.saw(line); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%q never arrived", line)
		}
	}
}

// order is the place of a line among those that the server has seen.
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
	c, err := net.Dial("tcp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
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

	c, err := net.Dial("tcp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
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
		if err != nil {
			t.Fatal(err)
		}
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
