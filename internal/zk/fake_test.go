package zk

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// fake is a server that answers as a test wants.
type fake struct {
	net.Listener
	conns    atomic.Int32                                // how many have shaken hands
	readOnly bool                                        // it says so
	answer   func(conn int, xid int32, o opcode) message // what it answers a request with
}

// message is an answer: with raw nothing else counts.
type message struct {
	xid  int32 // 0: the request's
	code int32
	body []byte
	raw  []byte
}

func (m message) bytes(xid int32) []byte {
	if m.raw != nil {
		return m.raw
	}
	if m.xid != 0 {
		xid = m.xid
	}
	b := appendInt(appendLong(appendInt(nil, xid), 1), m.code)
	return appendText([]byte(nil), append(b, m.body...))
}

// good answers everything that a session asks by itself.
func good(o opcode) message {
	switch o {
	case opMulti:
		return message{body: appendMultiEnd(nil)}
	case opGetData:
		return message{body: append(appendText([]byte(nil), "data"), make([]byte, 68)...)}
	}
	return message{}
}

func startFake(t *testing.T, f *fake) string {
	t.Helper()
	var err error
	if f.Listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	var conns sync.WaitGroup
	conns.Go(func() {
		for {
			c, err := f.Accept()
			if err != nil {
				return
			}
			conns.Go(func() { defer c.Close(); f.serve(c) })
		}
	})
	t.Cleanup(func() { f.Close(); conns.Wait() })
	return f.Addr().String()
}

func (f *fake) serve(c net.Conn) {
	r := bufio.NewReader(c)
	if _, err := readMessage(r); err != nil {
		return
	}
	n := int(f.conns.Add(1))
	welcome := appendText(appendLong(appendInt(appendInt(nil, 0), 10_000), 7), make([]byte, passwordSize))
	c.Write(appendText([]byte(nil), appendBool(welcome, f.readOnly)))
	for {
		b, err := readMessage(r)
		if err != nil {
			return
		}
		d := &decoder{b: b}
		xid, o := d.int(), opcode(d.int())
		if _, err := c.Write(f.answer(n, xid, o).bytes(xid)); err != nil {
			return
		}
		if o == opCloseSession {
			return
		}
	}
}

func readMessage(r io.Reader) ([]byte, error) {
	var size [4]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return nil, err
	}
	b := make([]byte, binary.BigEndian.Uint32(size[:]))
	_, err := io.ReadFull(r, b)
	return b, err
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
	if _, _, err := c.Create(soon(t), "/a", nil, Container); !errors.Is(err, ErrUnimplemented) {
		t.Errorf("a container: %v", err)
	}
	if _, err := c.CreateAndList(soon(t), "/a/n-", nil); !errors.Is(err, ErrUnimplemented) {
		t.Errorf("create and list: %v", err)
	}
}

func TestRefusedUserIsFinal(t *testing.T) {
	t.Parallel()
	var refuse atomic.Bool
	addr := startFake(t, &fake{answer: func(n int, _ int32, o opcode) message {
		if o == opAuth && refuse.Load() {
			return message{code: -115}
		}
		if o == opDelete {
			return message{raw: []byte("the connection ends with this")}
		}
		return good(o)
	}})
	cfg := Config{Servers: []string{addr}, User: "ann", Password: "s3cret"}
	c := dial(t, cfg)
	refuse.Store(true)
	if err := c.Delete(soon(t), "/a", -1); !errors.Is(err, ErrConnectionLoss) {
		t.Errorf("delete: %v", err)
	}
	receive(t, "the session is over", c.Done())
	if err := c.Err(); !errors.Is(err, ErrAuthFailed) {
		t.Errorf("the session is over: %v", err)
	}
	if _, err := Dial(soon(t), cfg); !errors.Is(err, ErrAuthFailed) || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("dial: %v", err)
	}
}

func TestNonsenseEndsTheConnectionOnly(t *testing.T) {
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

func TestServerThatCanOnlyBeRead(t *testing.T) {
	t.Parallel()
	addr := startFake(t, &fake{readOnly: true})
	if _, err := Dial(soon(t), Config{Servers: []string{addr}}); err == nil || !strings.Contains(err.Error(), "read-only") {
		t.Errorf("dial: %v", err)
	}
}

// A server that answers reads but does no writes proves nothing: the deadline passes, and
// the session isn't over.
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
		if _, _, err := c.Get(soon(t), "/a"); err != nil {
			t.Fatal(err)
		}
	}
	if c.Deadline() != first || c.Err() != nil {
		t.Errorf("the deadline moved by %v; %v", c.Deadline().Sub(first), c.Err())
	}
}
