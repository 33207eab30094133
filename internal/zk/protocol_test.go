package zk

import (
	"bufio"
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
)

func TestJuteReadsWhatItWrites(t *testing.T) {
	b := appendLong(appendInt(nil, -7), 1<<40)
	b = appendBool(appendBool(b, true), false)
	b = appendTexts(appendText(appendText(b, "é"), []byte{0, 1}), []string{"a", ""})
	d := &decoder{b: b}
	expect.Equal(t, d.int(), -7, "int")
	expect.Equal(t, d.long(), 1<<40, "long")
	if a, b := d.bool(), d.bool(); !a || b {
		t.Errorf("bools %v, %v", a, b)
	}
	if s, b, l := d.text(), d.buffer(), d.texts(); s != "é" || !bytes.Equal(b, []byte{0, 1}) || !slices.Equal(l, []string{"a", ""}) {
		t.Errorf("%q, %v, %q", s, b, l)
	}
	if d.bad || len(d.b) > 0 {
		t.Errorf("bad %v, left %v", d.bad, d.b)
	}
	if d.int(); !d.bad {
		t.Error("read beyond the end")
	}
}

// FuzzReceived checks that every message is accepted or refused, without a panic, and with no more
// memory than was sent.
func FuzzReceived(f *testing.F) {
	frame := func(xid int32, zxid int64, code int32, rest ...byte) []byte {
		return append(appendInt(appendLong(appendInt(nil, xid), zxid), code), rest...)
	}
	f.Add(frame(1, 5, 0), int32(opDelete))
	f.Add(frame(1, 5, -101), int32(opGetData))
	f.Add(frame(1, 5, 0, 0x7f, 0xff, 0xff, 0xff), int32(opGetChildren2))
	f.Add(frame(1, 5, 0, 0, 0, 0, 1, 0, 0, 0, 1, 'x'), int32(opGetChildren2))
	f.Add(frame(1, 5, 0, 0xff, 0xff, 0xff, 0xff, 1), int32(opMulti))
	f.Add(frame(xidEvent, -1, 0, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 2, '/', 'a'), int32(opGetData))
	f.Fuzz(func(t *testing.T, message []byte, what int32) {
		c := newConn(Config{})
		c.proof.connected(c.lastReceived)
		k := newRPC(opcode(what), "/a")
		k.xid, k.stage = 1, sent
		c.inFlight = append(c.inFlight, k)
		events := 0
		at := watchKey{"/a", kindData}
		c.watches.entry(at).watches = []*Watch{{table: &c.watches, key: at, f: func(Event) { events++ }}}
		err := c.handleMessage(message, true)
		if answered := len(k.done) == 1; answered == (len(c.inFlight) > 0) || events > 1 {
			t.Errorf("answered %v, %d in flight, %d events, %v", answered, len(c.inFlight), events, err)
		}
	})
}

func FuzzFrames(f *testing.F) {
	f.Add([]byte{0, 0, 0, 16, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16})
	f.Add([]byte{0xff, 0, 0, 0})
	f.Add(append([]byte{0, 0, 0, 200}, make([]byte, 200)...))
	f.Fuzz(func(t *testing.T, stream []byte) {
		const limit = 100
		r := bufio.NewReader(bytes.NewReader(stream))
		for {
			frame, whole, err := readFrame(r, nil, limit)
			if err != nil {
				return
			}
			if len(frame) < answerHead || len(frame) > limit || !whole && len(frame) != answerHead {
				t.Fatalf("a frame of %d bytes, whole %v", len(frame), whole)
			}
		}
	})
}

func FuzzWelcome(f *testing.F) {
	f.Add(append(appendText(appendLong(appendInt(appendInt(nil, 0), 4000), 7), make([]byte, passwordSize)), 0), int64(7))
	f.Add(appendInt(nil, 0), int64(0))
	f.Fuzz(func(t *testing.T, message []byte, id int64) {
		var w connectResponse
		err := w.decode(&decoder{b: message}, identity{id: id})
		if err == nil && (w.timeout <= 0 || w.id == 0 || id != 0 && w.id != id) {
			t.Errorf("accepted %+v for session %d", w, id)
		}
	})
}

func TestServerThatIsTooOld(t *testing.T) {
	t.Parallel()
	addr := startFake(t, &fake{answer: func(_ int, _ int32, o opcode) message {
		if o == opCreate2 || o == opCreateContainer {
			return message{code: -6}
		}
		return good(o)
	}})
	c := at(t, addr)
	expect.Be(t, expect.Err2(c.Create(soon(t), "/a", nil, Container)), ErrUnimplemented, "a container")
	expect.Be(t, expect.Err(c.CreateAndList(soon(t), "/a/n-", nil)), ErrUnimplemented, "create and list")
}

// A server that grants less time than the session has had may end it before what was proved so far.
func TestSessionThatIsResumedWithLessTime(t *testing.T) {
	t.Parallel()
	for resumed, ends := range map[time.Duration]bool{20 * time.Second: false, 10 * time.Second: true} {
		closed := make(chan int, 2)
		f := &fake{timeout: 20 * time.Second, resumed: resumed, answer: func(n int, _ int32, o opcode) message {
			if n == 1 && o == opDelete {
				return message{raw: []byte("the connection ends with this")}
			}
			if o == opCloseSession {
				closed <- n
			}
			return good(o)
		}}
		c := dial(t, Config{Servers: []string{startFake(t, f)}, Timeout: 20 * time.Second})
		expect.Be(t, c.Delete(soon(t), "/a", -1), ErrConnectionLoss, "delete")
		if !ends {
			expect.OK(t, expect.Err2(c.Get(soon(t), "/a")), "a session with the same timeout")
			continue
		}
		receive(t, "the session is over", c.Done())
		expect.Be(t, c.Err(), ErrSessionExpired, "the session is over")
		expect.Equal(t, receive(t, "the servers end the session", closed), 2, "the session is closed through connection")
	}
}

// Answers that no server gives confirm nothing, and do not stop the program.
func TestAnswersThatDoNotFit(t *testing.T) {
	t.Parallel()
	f := &fake{answer: func(n int, _ int32, o opcode) message {
		if o == opCreate2 || o == opCreate {
			return message{body: append(appendText([]byte(nil), "lock-0000000000"), make([]byte, 68)...)}
		}
		if o == opGetChildren2 {
			return message{body: append(appendInt(nil, 0), make([]byte, 68)...)}
		}
		return good(o)
	}}
	c := dial(t, Config{Servers: []string{startFake(t, f)}})
	if n, err := c.CreateAndList(soon(t), "/a/lock-", nil); !errors.Is(err, ErrConnectionLoss) || n.Path != "" {
		t.Errorf("a path elsewhere: %+v, %v", n, err)
	}
	if missing, err := c.CheckAll(soon(t), []string{"/a/lock-1"}); !errors.Is(err, ErrConnectionLoss) {
		t.Errorf("a check without a result: %d, %v", missing, err)
	}
}

func TestMalformedMessageEndsOnlyTheConnection(t *testing.T) {
	t.Parallel()
	for name, nonsense := range map[string]message{
		"negative length":     {raw: []byte{0xff, 0, 0, 0}},
		"short":               {raw: []byte{0, 0, 0, 1, 7}},
		"text":                {raw: []byte("HTTP/1.1 400 Bad Request\r\n\r\n")},
		"another's number":    {xid: 12345},
		"half a body":         {body: []byte{0, 0, 0, 5, 'x'}},
		"half an event":       {xid: xidEvent, body: []byte{0}},
		"the session's moved": {code: codeMoved},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := &fake{}
			f.answer = func(n int, _ int32, o opcode) message {
				if n == 1 && o == opSetData {
					return nonsense
				}
				return good(o)
			}
			c := at(t, startFake(t, f))
			if _, err := c.Set(soon(t), "/a", nil, -1); !errors.Is(err, ErrConnectionLoss) || errors.Is(err, ErrNotSent) {
				t.Errorf("set: %v", err)
			}
			if _, _, err := c.Get(soon(t), "/a"); err != nil || f.conns.Load() != 2 {
				t.Errorf("afterwards: %v, on connection %d", err, f.conns.Load())
			}
		})
	}
}

func TestTooLongConcernsOneCall(t *testing.T) {
	t.Parallel()
	f := &fake{answer: func(_ int, _ int32, o opcode) message {
		if o == opGetChildren2 {
			return message{body: bytes.Repeat([]byte{1}, 5000)}
		}
		return good(o)
	}}
	c := dial(t, Config{Servers: []string{startFake(t, f)}, MaxRequest: 1000, MaxAnswer: 4000})
	if _, _, err := c.Children(soon(t), "/a"); !errors.Is(err, ErrTooLarge) || errors.Is(err, ErrNotSent) {
		t.Errorf("an answer: %v", err)
	}
	if _, err := c.Set(soon(t), "/a", make([]byte, 1000), -1); !errors.Is(err, ErrTooLarge) || !errors.Is(err, ErrNotSent) {
		t.Errorf("a request: %v", err)
	}
	if _, _, err := c.Get(soon(t), "/a"); err != nil || f.conns.Load() != 1 {
		t.Errorf("afterwards: %v, on connection %d", err, f.conns.Load())
	}
}

func TestReadOnlyServerIsRefused(t *testing.T) {
	t.Parallel()
	addr := startFake(t, &fake{readOnly: true})
	if _, err := Dial(soon(t), Config{Servers: []string{addr}}); err == nil || !strings.Contains(err.Error(), "read-only") {
		t.Errorf("dial: %v", err)
	}
}

// A server that answers only reads proves nothing: the deadline passes, but the session isn't over.
func TestOnlyWritesMoveTheDeadline(t *testing.T) {
	t.Parallel()
	addr := startFake(t, &fake{answer: func(_ int, _ int32, o opcode) message {
		if o == opMulti {
			return message{code: -6}
		}
		return good(o)
	}})
	c := at(t, addr)
	first := c.Deadline()
	for end := time.Now().Add(100 * time.Millisecond); time.Now().Before(end); {
		must.OK(t, expect.Err2(c.Get(soon(t), "/a")))
	}
	if c.Deadline() != first || c.Err() != nil {
		t.Errorf("the deadline moved by %v; %v", c.Deadline().Sub(first), c.Err())
	}
}

func TestProof(t *testing.T) {
	zero := time.Now()
	after := func(s float64) time.Time { return zero.Add(time.Duration(s * float64(time.Second))) }
	p := proof{timeout: 12 * time.Second}
	want := func(what string, s float64) {
		t.Helper()
		if got := p.until.Sub(zero); got != time.Duration(s*float64(time.Second)) {
			t.Errorf("%s: until %v, want %vs", what, got, s)
		}
	}
	p.created(after(0))
	want("a new session", 12)
	for s := 2.0; s <= 8; s += 2 {
		p.answered(after(s), after(s))
	}
	want("any server answers", 12)
	p.agreed(after(2))
	want("what was sent a moment ago may not be known to the leader", 12)
	p.agreed(after(6))
	want("what was sent a quarter earlier is", 14)
	p.agreed(after(4))
	want("it never goes back", 14)
	p.answered(after(8.1), after(8.1))
	p.agreed(after(11.05))
	want("what follows closely is not kept apart", 20)
	p.answered(after(14), after(18))
	p.agreed(after(20))
	want("what was long on its way may have come a moment ago", 20)
	p.agreed(after(21))
	want("from its answer on the time counts", 26)
	p.connected(after(30))
	want("a connection proves nothing", 26)
	p.agreed(after(30.1))
	want("but a write on it does: the leader knows of the connection at once", 42)
}

func TestProofKeepsFewMarks(t *testing.T) {
	p := proof{timeout: time.Second}
	now := time.Now()
	p.created(now)
	for range 100_000 {
		now = now.Add(100 * time.Microsecond)
		p.answered(now, now)
		p.agreed(now.Add(-time.Millisecond))
		if len(p.marks) > 2*markPart {
			t.Fatalf("%d marks", len(p.marks))
		}
	}
	if left := p.until.Sub(now); left < p.timeout*2/3 {
		t.Errorf("%v are left of %v, under constant use", left, p.timeout)
	}
}
