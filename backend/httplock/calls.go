package httplock

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/bounded"
	"github.com/distlock/distlock/internal/httpwire"
)

const (
	// closeTime is the time between two calls in which a connection of calls is opened: a call that is alone costs less as a
	// request.
	closeTime = time.Second

	// stillTime is for how long a connection of calls may be silent. Servers and proxies end one that is silent for longer.
	stillTime = 30 * time.Second

	// againTime is when a server that refused a connection of calls is asked for one again.
	againTime = 10 * time.Second

	// vainTime is that after a connection over which no answer came: a proxy on the way may keep lines back.
	vainTime = 5 * time.Minute

	answersBuffer = 16 << 10 // bytes of answers that are read at once, unless one is longer
)

// caller makes acquires and releases over one connection to the server in use, each at once, and as requests as long as
// there is no connection.
type caller struct {
	client *client
	life   context.Context // of the connections
	secret string          // for news
	begin  func(task func()) bool

	mu     sync.Mutex
	stream *callStream // nil: there is none
	last   time.Time   // of the calls
	again  time.Time   // when a connection may be opened
}

// called is what became of a call.
type called struct {
	alone bool // nothing was done, and it is to be sent as a request
	err   error
	grant httpwire.Grant
}

// call makes a call. g gets the grant of an acquire, if check has nothing against it; both are nil for a release.
func (m *caller) call(ctx context.Context, op string, q request, g *httpwire.Grant, check func(httpwire.Grant) error) error {
	s := m.current()
	if s == nil {
		return m.alone(ctx, q, g, check)
	}
	if q.prepare != nil {
		_ = q.prepare(ctx, s.from) // only revocable locks need it, which are sent as requests
	}
	a := s.do(ctx, op, q)
	if a.alone {
		return m.alone(ctx, q, g, check)
	}
	if a.err == nil && g != nil {
		*g = a.grant
		if a.err = check(a.grant); a.err != nil {
			m.client.leave(ctx, s.from)
		}
	}
	if a.err != nil {
		return tried{{s.from, a.err}}
	}
	return nil
}

// alone sends a call as a request.
func (m *caller) alone(ctx context.Context, q request, g *httpwire.Grant, check func(httpwire.Grant) error) error {
	ctx, end := during(ctx, m.life)
	defer end()
	if g == nil {
		return m.client.call(ctx, q, nil)
	}
	return m.client.call(ctx, q, func(body io.Reader) error {
		if err := decode(body, g); err != nil {
			return err
		}
		return check(*g)
	})
}

// current returns the connection to the server in use, or nil. It lets one be opened if calls come close together.
func (m *caller) current() *callStream {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	before := m.last
	m.last = now
	server := m.client.inUse()
	if s := m.stream; s != nil && (s.from != server || now.Sub(before) > stillTime) {
		m.drop(s)
	}
	if m.stream == nil && now.Sub(before) < closeTime && now.After(m.again) && server.verified.Load() && server.joins.Load() {
		m.again = now.Add(againTime)
		m.begin(func() { m.open(server) })
	}
	return m.stream
}

// drop lets a connection get no more calls. The caller has locked mu.
func (m *caller) drop(s *callStream) {
	calls, answers := s.retire()
	if m.stream != s {
		return
	}
	m.stream = nil
	switch {
	case answers > 0:
		m.again = time.Time{}
	case calls > 0:
		m.again = time.Now().Add(vainTime)
	}
}

func (m *caller) abandon(s *callStream) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.drop(s)
}

// open opens a connection, and reads from it until it ends. Without one, calls are sent as requests.
func (m *caller) open(server *endpoint) {
	ctx, cancel := context.WithCancel(m.life)
	defer cancel()
	limit := time.AfterFunc(againTime, cancel)
	resp, err := m.client.send(ctx, server, request{method: http.MethodGet, path: callsPath, status: http.StatusSwitchingProtocols, secret: m.secret, upgrade: httpwire.CallsProtocol})
	if err != nil {
		return
	}
	conn, ok := resp.Body.(io.ReadWriteCloser)
	if limit.Stop(); !ok {
		resp.Body.Close()
		return
	}
	defer context.AfterFunc(m.life, func() { conn.Close() })()
	s := newCallStream(m, server, conn)
	m.mu.Lock()
	m.stream = s
	m.mu.Unlock()
	m.begin(s.write)
	s.read()
}

// callStream is a connection of calls.
type callStream struct {
	caller *caller
	from   *endpoint
	conn   io.ReadWriteCloser
	wake   chan struct{} // has an element if something waits in queue
	ended  chan struct{}

	acquires, releases places
	noMore             chan struct{} // is closed when it gets no more calls

	mu       sync.Mutex
	underWay map[uint64]*streamedCall
	queue    []*streamedCall // those that are not sent yet
	left     []uint64        // those that were sent, and whose callers do not wait any more
	index    uint64          // of the last call
	lines    uint64          // that were read
	retired  bool            // it gets no more calls
}

func newCallStream(m *caller, from *endpoint, conn io.ReadWriteCloser) *callStream {
	return &callStream{caller: m, from: from, conn: conn, underWay: map[uint64]*streamedCall{}, wake: make(chan struct{}, 1), ended: make(chan struct{}),
		acquires: make(places, httpwire.MaxCalls-releasesAtOnce), releases: make(places, releasesAtOnce), noMore: make(chan struct{})}
}

// streamedCall is a call over a connection.
type streamedCall struct {
	index uint64
	op    string // its key in httpwire.Call
	body  []byte
	done  chan called
	sent  bool
	lines uint64 // that were read before it was sent
}

// streamedCalls has calls that are over.
var streamedCalls = sync.Pool{New: func() any { return &streamedCall{done: make(chan called, 1)} }}

// do makes a call, once there is room for it. The server has none for more.
func (s *callStream) do(ctx context.Context, op string, q request) called {
	p := s.acquires
	if op == "release" {
		p = s.releases
	}
	if !p.take(ctx, s.noMore) {
		return called{alone: ctx.Err() == nil, err: driver.Unsent(ctx.Err())}
	}
	defer p.free()
	c := streamedCalls.Get().(*streamedCall)
	c.op, c.body, c.sent = op, q.body, false
	if !s.add(c) {
		return called{alone: true}
	}
	first, second := bounded.Ends(ctx)
	select {
	case a := <-c.done:
		streamedCalls.Put(c) // nothing else has it any more
		return a
	case <-first:
	case <-second:
	}
	return s.leave(ctx, c)
}

// add lets a call be sent, unless the connection gets no more.
func (s *callStream) add(c *streamedCall) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.retired {
		return false
	}
	s.index++
	c.index = s.index
	s.underWay[c.index] = c
	s.queue = append(s.queue, c)
	s.signal()
	return true
}

func (s *callStream) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// leave ends the wait of a call whose ctx has ended.
func (s *callStream) leave(ctx context.Context, c *streamedCall) called {
	s.mu.Lock()
	if s.underWay[c.index] != c {
		s.mu.Unlock()
		return <-c.done
	}
	delete(s.underWay, c.index)
	s.closeUnused()
	silent := false
	if c.sent {
		s.left = append(s.left, c.index)
		s.signal()
		silent = c.lines == s.lines && s.from.isSilent(ctx)
	} else {
		s.queue = slices.DeleteFunc(s.queue, func(q *streamedCall) bool { return q == c })
	}
	s.mu.Unlock()
	if !c.sent {
		return called{err: driver.Unsent(ctx.Err())}
	}
	if silent { // no answer at all has come since
		s.caller.abandon(s)
	}
	s.caller.client.leave(ctx, s.from)
	return called{err: noAnswer(ctx, ctx.Err())}
}

// retire lets the connection get no more calls, and closes it once none is under way. It returns how many calls and answers
// there were.
func (s *callStream) retire() (calls, answers uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.retired {
		s.retired = true
		close(s.noMore)
	}
	s.closeUnused()
	return s.index, s.lines
}

// closeUnused closes a connection that gets no more calls, and has none under way. The caller has locked mu.
func (s *callStream) closeUnused() {
	if s.retired && len(s.underWay) == 0 {
		go s.conn.Close() // TLS says farewell, for which it may have to wait
	}
}

// write sends the calls, those together that come together.
func (s *callStream) write() {
	var text []byte
	for {
		select {
		case <-s.wake:
		case <-s.ended:
			return
		}
		runtime.Gosched() // calls that are about to be made share a write
		text = s.take(text[:0])
		if _, err := s.conn.Write(text); err != nil {
			s.conn.Close() // which ends read
		}
	}
}

// take appends the lines that wait.
func (s *callStream) take(text []byte) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.from.asked()
	for _, c := range s.queue {
		c.sent, c.lines = true, s.lines
		text = strconv.AppendUint(append(text, `{"index":`...), c.index, 10)
		text = append(append(append(text, `,"`...), c.op...), `":`...)
		text = append(append(text, c.body...), "}\n"...)
	}
	for _, index := range s.left {
		text = append(strconv.AppendUint(append(text, `{"index":`...), index, 10), `,"leave":true}`+"\n"...)
	}
	s.queue, s.left = s.queue[:0], s.left[:0]
	return text
}

// read gives the calls their answers, until the connection ends.
func (s *callStream) read() {
	lines := bufio.NewScanner(s.conn)
	lines.Buffer(make([]byte, 0, answersBuffer), maxAnswer)
	var err error
	for err == nil && lines.Scan() {
		err = s.line(lines.Bytes())
	}
	if err == nil {
		if err = lines.Err(); err == nil {
			err = io.ErrUnexpectedEOF
		}
		err = fmt.Errorf("the answer broke off: %w", err)
	}
	s.end(err)
}

// end gives the calls under way their outcome.
func (s *callStream) end(err error) {
	s.caller.abandon(s)
	s.conn.Close()
	close(s.ended)
	if s.caller.life.Err() != nil {
		err = context.Cause(s.caller.life)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.underWay) > 0 { // as after a request without an answer
		s.from.verified.Store(false)
		s.caller.client.leave(s.caller.life, s.from)
	}
	for _, c := range s.underWay {
		c.done <- called{err: err, alone: !c.sent}
	}
	clear(s.underWay)
	s.queue = nil
}

var errMalformed = errors.New("the answer is malformed")

// line gives a call its answer.
func (s *callStream) line(text []byte) error {
	line, usual := httpwire.ReadCalled(text)
	if !usual {
		line = httpwire.Called{}
		if json.Unmarshal(text, &line) != nil || line.Outcome == "" || (line.Problem == nil) != (line.Outcome == httpwire.OK) || line.Problem != nil && line.Problem.Kind != line.Outcome {
			return errMalformed
		}
	}
	s.mu.Lock()
	s.lines++
	s.from.answered()
	c := s.underWay[line.Index]
	if c != nil && !c.sent || line.Index > s.index {
		s.mu.Unlock()
		return errMalformed
	}
	delete(s.underWay, line.Index)
	s.closeUnused()
	s.mu.Unlock()
	if c == nil { // its caller has gone, or it is about the connection
		if line.Index == 0 {
			s.caller.abandon(s)
		}
		return nil
	}
	a, drop := s.answer(line)
	if drop {
		s.caller.abandon(s)
	}
	c.done <- a
	return nil
}

// answer returns what a line says about its call, and whether other calls had better be made elsewhere.
func (s *callStream) answer(line httpwire.Called) (a called, drop bool) {
	switch {
	case line.Problem == nil && line.Grant == nil:
		return called{}, false
	case line.Problem == nil:
		return called{grant: *line.Grant}, false
	}
	err := line.Problem.Err()
	switch {
	case errors.Is(err, httpwire.ErrDenied):
		return called{alone: true}, line.Problem.Status == http.StatusUnauthorized // there may be another token
	case errors.Is(err, driver.ErrUnsent) && !errors.Is(err, driver.ErrSpent):
		return called{alone: true}, false // it finds the server that can help
	case !isFact(err):
		s.caller.client.leave(s.caller.life, s.from)
	}
	return called{err: err}, false
}
