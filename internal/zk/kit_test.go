package zk

import (
	"bufio"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/distlock/distlock/internal/netaddr"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/locktest"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

var eventually = locktest.Eventually

func TestMain(m *testing.M) {
	code := testserver.Run(m)
	if left := leftBehind(); left != "" && code == 0 {
		fmt.Println("goroutines left behind:\n" + left)
		code = 1
	}
	os.Exit(code)
}

// leftBehind waits for the goroutines of sessions to end, and returns the rest.
func leftBehind() string {
	var left []string
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(time.Millisecond) {
		buf := make([]byte, 1<<20)
		left = left[:0]
		for _, g := range strings.Split(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
			if strings.Contains(g, "internal/zk.") && !strings.Contains(g, "TestMain") {
				left = append(left, g)
			}
		}
		if len(left) == 0 {
			return ""
		}
	}
	return strings.Join(left, "\n\n")
}

// patience bounds how long a test waits.
const patience = 2 * time.Minute

// soon returns a context that bounds a wait.
func soon(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// dial opens a session that ends with the test.
func dial(t testing.TB, cfg Config) *Conn {
	t.Helper()
	c := must.Get(Dial(soon(t), cfg))(t)
	t.Cleanup(func() { c.Close(soon(t)) })
	return c
}

const long = time.Minute // longer than any test

// at opens a session with servers.
func at(t testing.TB, addrs ...string) *Conn {
	t.Helper()
	return dial(t, Config{Servers: addrs, Timeout: long})
}

// shared opens a session with the shared server.
func shared(t testing.TB) *Conn {
	t.Helper()
	return at(t, testserver.SharedZooKeeper(t).Addr())
}

// place makes a container for the test.
func place(t testing.TB, c *Conn) string {
	t.Helper()
	path := fmt.Sprintf("/%s-%08x", strings.NewReplacer("/", "-", " ", "-").Replace(t.Name()), rand.Uint32())
	must.OK(t, expect.Err2(c.Create(soon(t), path, nil, Container)))
	return path
}

// Err returns why the session is over: ErrSessionExpired, ErrAuthFailed or ErrClosed. It is nil
// until Done is closed.
func (c *Conn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// node makes an ephemeral node. On a busy machine a server may be silent for longer than a short
// session waits for it.
func node(t testing.TB, c *Conn, path string) {
	t.Helper()
	_, _, err := c.Create(soon(t), path, nil, Ephemeral)
	for errors.Is(err, ErrConnectionLoss) {
		_, _, err = c.Create(soon(t), path, nil, Ephemeral)
	}
	if err != nil && !errors.Is(err, ErrNodeExists) {
		t.Fatal(err)
	}
}

// receive waits for a value.
func receive[T any](t testing.TB, what string, from <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-from:
	case <-time.After(patience):
		t.Fatalf("not after %v: %s", patience, what)
	}
	return v
}

// as returns a login that never changes.
func as(user, password string) netaddr.Credentials {
	return func(context.Context) (string, string, error) { return user, password, nil }
}

// fake is a server with scripted answers.
type fake struct {
	net.Listener
	conns    atomic.Int32                                // handshakes so far
	readOnly bool                                        // as it claims
	timeout  time.Duration                               // that it grants; 0: 10 seconds
	resumed  time.Duration                               // the same, to a session that comes back; 0: timeout
	answer   func(conn int, xid int32, o opcode) message // the answer to a request
	behind   func(zxid int64) bool                       // it closes the connection of a session that has seen this; nil: never
	empty    atomic.Bool                                 // it knows no session
}

// message is an answer. raw overrides the other fields.
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

// good answers the requests that a session makes by itself.
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
	f.Listener = must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
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
	hello, err := readMessage(r)
	if err != nil {
		return
	}
	d := &decoder{b: hello}
	d.int()
	zxid := d.long()
	d.int()
	if f.behind != nil && f.behind(zxid) {
		return
	}
	if known := d.long(); known != 0 && f.empty.Load() {
		c.Write(appendText([]byte(nil), appendBool(appendText(make([]byte, 16), make([]byte, passwordSize)), false)))
		return
	}
	n := int(f.conns.Add(1))
	timeout := cmp.Or(f.timeout, 10*time.Second)
	if n > 1 && f.resumed > 0 {
		timeout = f.resumed
	}
	welcome := appendText(appendLong(appendInt(appendInt(nil, 0), int32(timeout.Milliseconds())), 7), make([]byte, passwordSize))
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
