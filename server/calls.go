package server

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/distlock/distlock/internal/httpwire"
	"github.com/distlock/distlock/internal/wait"
)

// Many calls come over one connection, each in a line. They are made side by side, each as if it had come as a request: with
// its own rights, limits and line in the log. Each is answered by a line as soon as it is over, so none waits for another.

const (
	// quietTime is for how long a connection of calls may be silent. Clients use none that was silent for half as long.
	quietTime = 2 * time.Minute

	// farewellTime is how long a client may go on to send calls, once it knows that the server drains.
	farewellTime = time.Second

	callsBuffer = 16 << 10  // bytes of lines that are read at once, unless one is longer
	mostUnread  = 256 << 10 // bytes of answers that wait for the client; no more calls are read meanwhile
)

// calls turns the connection into one of calls.
func (ex *exchange) calls() error {
	if !asksFor(ex.r.Header, httpwire.CallsProtocol) {
		ex.w.Header().Set("Upgrade", httpwire.CallsProtocol)
		return problem(http.StatusUpgradeRequired, httpwire.Unsupported, "want the headers Connection: Upgrade, and Upgrade: %s", httpwire.CallsProtocol)
	}
	if err := ex.noBody(); err != nil { // it would be taken for calls
		return err
	}
	_, end, err := ex.stream()
	if err != nil {
		return err
	}
	defer end()
	ex.w.Header().Set("Connection", "Upgrade")
	ex.w.Header().Set("Upgrade", httpwire.CallsProtocol)
	ex.w.WriteHeader(http.StatusSwitchingProtocols)
	conn, rest, err := http.NewResponseController(ex.w).Hijack()
	if err != nil {
		return err
	}
	defer ex.s.connections.ended(ex.r.Context())
	defer conn.Close()
	ex.parts = true
	_ = conn.SetDeadline(time.Time{})
	c := &callStream{ex: ex, conn: conn, ctx: context.WithoutCancel(ex.r.Context()), underWay: map[uint64]context.CancelFunc{}}
	c.room = sync.NewCond(&c.mu)
	stop := context.AfterFunc(ex.s.drained, c.farewell) // the request's context ends with the first error of a read
	defer stop()
	if c.read(rest) {
		c.leave()
	}
	c.tasks.Wait()
	return nil
}

// asksFor reports whether a request wants a protocol. Connection shows that Upgrade is of this connection, and not one that a
// proxy, which has not asked for anything, has passed on. No page in a browser can send them.
func asksFor(h http.Header, protocol string) bool {
	for _, token := range strings.Split(strings.Join(h["Connection"], ","), ",") {
		if strings.EqualFold(strings.TrimSpace(token), "Upgrade") {
			return strings.EqualFold(h.Get("Upgrade"), protocol)
		}
	}
	return false
}

// callStream is a connection of calls.
type callStream struct {
	ex    *exchange // the request that began it
	conn  net.Conn
	ctx   context.Context // the values of the calls' contexts
	tasks wait.Group      // the calls under way
	meta  httpwire.MetaReader
	as    caller

	mu       sync.Mutex
	underWay map[uint64]context.CancelFunc // calls, by index
	out      []byte                        // the answers that wait
	room     *sync.Cond                    // out has become short
	spare    []byte
	writing  bool      // a call writes the answers, also those that come meanwhile
	writes   time.Time // when the deadline of its writes was set
	ending   bool      // the client knows that the server drains
}

// read reads the calls until there are no more, and reports whether the client has gone.
func (c *callStream) read(from io.Reader) (gone bool) {
	lines := bufio.NewScanner(&quietReader{c: c, from: from})
	lines.Buffer(make([]byte, 0, callsBuffer), httpwire.MaxBody)
	for lines.Scan() {
		if err := c.begin(lines.Bytes()); err != nil {
			p := problemOf(err)
			c.answer(&httpwire.Called{Outcome: p.Kind, Problem: &p})
			return true
		}
	}
	return !errors.Is(lines.Err(), os.ErrDeadlineExceeded)
}

// leave ends all calls.
func (c *callStream) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, cancel := range c.underWay {
		cancel()
	}
}

// caller is who makes the calls of a connection.
type caller struct {
	known *identities // of which it is one
	who   *Identity   // nil: it has not called yet
	err   error       // it is none
	log   slog.Handler
}

// identify finds out again who calls, if the identities have changed: rights may end while the connection lasts.
func (c *callStream) identify() caller {
	s, r := c.ex.s, c.ex.r
	known := s.o.Access.now()
	if c.as.who != nil && c.as.known == known {
		return c.as
	}
	who, err := known.identify(r)
	if err != nil {
		who = c.ex.who // for the log
	}
	c.as = caller{known: known, who: who, err: err}
	if s.o.Log != nil {
		c.as.log = s.o.Log.Handler().WithAttrs(who.logged(r))
	}
	return c.as
}

// deadlineStep is how exact deadlines are: to set one for each read and write takes time.
const deadlineStep = time.Second

// quietReader reads from a connection that may be silent for a bounded time.
type quietReader struct {
	c    *callStream
	from io.Reader
	set  time.Time // the deadline
}

func (r *quietReader) Read(p []byte) (int, error) {
	if now := time.Now(); now.Sub(r.set) > deadlineStep {
		r.set = now
		r.c.mu.Lock()
		if !r.c.ending {
			_ = r.c.conn.SetReadDeadline(now.Add(quietTime))
		}
		r.c.mu.Unlock()
	}
	return r.from.Read(p)
}

// farewell tells the client to send its calls elsewhere.
func (c *callStream) farewell() {
	c.mu.Lock()
	c.ending = true
	_ = c.conn.SetReadDeadline(time.Now().Add(farewellTime))
	c.mu.Unlock()
	p := problemOf(errDraining)
	c.answer(&httpwire.Called{Outcome: p.Kind, Problem: &p})
}

// begin begins the call of a line. The error ends the connection.
func (c *callStream) begin(line []byte) error {
	arrived := time.Now()
	if !utf8.Valid(line) {
		return invalid("the line is not UTF-8")
	}
	m, usual := c.meta.ReadCall(line)
	if !usual {
		m = httpwire.Call{}
		if err := decode(line, &m); err != nil {
			return err
		}
	}
	c.awaitRoom()
	as := c.identify() // not before, since a right may end meanwhile
	c.mu.Lock()
	defer c.mu.Unlock()
	cancel, known := c.underWay[m.Index]
	switch {
	case m.Index == 0 || known && !m.Leave:
		return invalid("index is %d: want a new one for each call, from 1 on", m.Index)
	case known:
		cancel()
		return nil
	case m.Leave: // it was answered meanwhile
		return nil
	}
	ctx, cancel := context.WithCancel(c.ctx)
	c.underWay[m.Index] = cancel
	t := &callTask{stream: c, ex: exchange{s: c.ex.s, r: c.ex.r, ctx: ctx, who: as.who, log: as.log}, call: m, arrived: arrived, refused: as.err}
	if as.err == nil && len(c.underWay) > httpwire.MaxCalls {
		t.refused = errTooMany
	}
	c.tasks.Add(1)
	c.ex.s.workers.run(t)
	return nil
}

// awaitRoom waits until the client has read enough of its answers. One that does not read loses its connection after writeTime.
func (c *callStream) awaitRoom() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.out) > mostUnread {
		c.room.Wait()
	}
}

// callTask is the task to make a call.
type callTask struct {
	stream  *callStream
	ex      exchange
	call    httpwire.Call
	arrived time.Time
	refused error // before anything was done
	grant   httpwire.Grant
	answer  httpwire.Called
}

func (t *callTask) run() {
	defer t.stream.tasks.Done()
	t.make()
	t.stream.answer(&t.answer)
}

// answer sends the answer to a call, with others that have come.
func (c *callStream) answer(a *httpwire.Called) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if cancel := c.underWay[a.Index]; cancel != nil {
		cancel()
		delete(c.underWay, a.Index)
	}
	c.out = append(httpwire.AppendCalled(c.out, a), '\n')
	if c.writing {
		return
	}
	c.writing = true
	for len(c.out) > 0 {
		c.mu.Unlock()
		runtime.Gosched() // calls that are over by now share a write
		c.mu.Lock()
		text := c.out
		c.out = c.spare[:0]
		c.room.Signal()
		c.mu.Unlock()
		if now := time.Now(); now.Sub(c.writes) > deadlineStep {
			c.writes = now
			_ = c.conn.SetWriteDeadline(now.Add(writeTime))
		}
		if _, err := c.conn.Write(text); err != nil {
			c.conn.Close() // which ends read
		}
		c.mu.Lock()
		c.spare = text
	}
	c.writing = false
}

var errTooMany = problem(http.StatusTooManyRequests, httpwire.Unsent, "more than %d calls at once over a connection", httpwire.MaxCalls)

// make makes the call.
func (t *callTask) make() {
	ex, call, out := &t.ex, &t.call, &t.answer
	pattern, status := "POST /v1/acquire", http.StatusOK
	if call.Release != nil {
		pattern, status = "POST /v1/release", http.StatusNoContent
	}
	*out = httpwire.Called{Index: call.Index, Outcome: httpwire.Unknown}
	defer func() {
		if v := recover(); v != nil { // as net/http does for a request
			ex.logPanic(pattern, v)
			out.Problem = &httpwire.Problem{Kind: httpwire.Unknown, Status: http.StatusInternalServerError, Title: "a bug in distlock"}
		}
	}()
	err := t.refused
	switch {
	case err != nil:
	case (call.Acquire == nil) == (call.Release == nil):
		err = invalid("want either acquire or release")
	case call.Release != nil:
		err = ex.releaseHold(*call.Release)
	default:
		if t.grant, err = ex.grant(*call.Acquire, t.arrived); err == nil {
			out.Grant = &t.grant
		}
	}
	if out.Outcome = httpwire.OK; err != nil {
		p := problemOf(err)
		out.Outcome, out.Problem, status = p.Kind, &p, p.Status
	}
	ex.note(pattern, status, out.Outcome, t.arrived)
}
