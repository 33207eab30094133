package httplock

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/httpwire"
)

const (
	// requestsAtOnce is how many requests of joined calls are under way. More of them have fewer calls each.
	requestsAtOnce = 2

	// joinTime is how long a request without an answer holds up the calls that wait for it.
	joinTime = 20 * time.Millisecond

	// endTime is how long the end of an answer may take after its last line.
	endTime = time.Second
)

// joiner sends an acquire or a release at once if few are under way, or if the server does not join calls. Those that come
// meanwhile are joined in one request. The server answers each of them as soon as it is over.
type joiner struct {
	client   *client
	life     context.Context // of the requests
	patience time.Duration   // joinTime

	mu    sync.Mutex
	busy  int // requests that hold up others
	queue []*joinedCall
}

func newJoiner(c *client, life context.Context) *joiner {
	return &joiner{client: c, life: life, patience: joinTime}
}

// joinedCall is a call that waits for those under way.
type joinedCall struct {
	op   string // its key in httpwire.Call
	q    request
	many *manyCalls  // of which it is one; nil: none yet. The joiner's mu guards it
	done chan called // has what became of it
	over atomic.Bool // its caller does not wait any more
}

// called has the result of a call that has waited.
type called struct {
	alone bool  // it was not sent, and is to be sent by itself
	slot  *slot // of a call that is alone, if it holds up others
	err   error
	grant httpwire.Grant
}

// slot is the place of a request among those under way.
type slot struct {
	j     *joiner
	freed atomic.Bool
	limit *time.Timer
}

// free lets the calls go that wait for the request.
func (s *slot) free() {
	if s != nil {
		s.limit.Stop()
		s.pass()
	}
}

// pass does that once.
func (s *slot) pass() {
	if !s.freed.Swap(true) {
		s.j.next()
	}
}

// newSlot returns a slot that frees itself soon.
func (j *joiner) newSlot() *slot {
	s := &slot{j: j}
	s.limit = time.AfterFunc(j.patience, s.pass)
	return s
}

// call makes a call. g gets the grant of an acquire, if check has nothing against it; both are nil for a release.
func (j *joiner) call(ctx context.Context, op string, q request, g *httpwire.Grant, check func(httpwire.Grant) error) error {
	a := called{alone: true}
	if c := j.begin(op, q, &a); c != nil {
		select {
		case a = <-c.done:
		case <-ctx.Done():
			return j.leave(ctx, c)
		}
		if a.err == nil && !a.alone && g != nil {
			if a.err = check(a.grant); a.err != nil {
				j.client.leave(ctx, c.many.server)
			}
			*g = a.grant
		}
		if a.err != nil {
			return tried{{c.many.server, a.err}}
		}
	}
	if !a.alone {
		return nil
	}
	defer a.slot.free()
	return j.alone(ctx, q, g, check)
}

// alone sends a call by itself.
func (j *joiner) alone(ctx context.Context, q request, g *httpwire.Grant, check func(httpwire.Grant) error) error {
	ctx, end := during(ctx, j.life)
	defer end()
	if g == nil {
		return j.client.call(ctx, q, nil)
	}
	return j.client.call(ctx, q, func(body io.Reader) error {
		if err := decode(body, g); err != nil {
			return err
		}
		return check(*g)
	})
}

// begin gives a call its turn, or returns what it waits for.
func (j *joiner) begin(op string, q request, a *called) *joinedCall {
	j.mu.Lock()
	defer j.mu.Unlock()
	switch {
	case j.server() == nil:
		return nil
	case j.busy < requestsAtOnce:
		j.busy++
		a.slot = j.newSlot()
		return nil
	}
	c := &joinedCall{op: op, q: q, done: make(chan called, 1)}
	j.queue = append(j.queue, c)
	return c
}

// server returns the server in use, or nil if that is not known to join calls.
func (j *joiner) server() *endpoint {
	s := j.client.servers[j.client.current.Load()]
	if !s.joins.Load() || !s.verified.Load() {
		return nil
	}
	return s
}

// leave ends the wait of a call whose ctx has ended.
func (j *joiner) leave(ctx context.Context, c *joinedCall) error {
	j.mu.Lock()
	i, many := slices.Index(j.queue, c), c.many
	if i >= 0 {
		j.queue = slices.Delete(j.queue, i, i+1)
	}
	j.mu.Unlock()
	if many != nil {
		many.left(c)
		j.client.leave(ctx, many.server)
		return tried{{many.server, noAnswer(ctx, ctx.Err())}}
	}
	if i < 0 { // it has just got its turn
		(<-c.done).slot.free()
	}
	return driver.Unsent(ctx.Err())
}

// next sends the calls that wait, or ends a request that held them up.
func (j *joiner) next() {
	j.mu.Lock()
	defer j.mu.Unlock()
	switch s := j.server(); {
	case len(j.queue) == 0:
		j.busy--
	case s == nil:
		for _, c := range j.queue {
			c.done <- called{alone: true}
		}
		j.queue = nil
		j.busy--
	case len(j.queue) == 1:
		j.queue[0].done <- called{alone: true, slot: j.newSlot()}
		j.queue = nil
	default:
		go j.take(s).send(j.newSlot())
	}
}

// take returns as many of the calls that wait as a request may have. The caller has locked mu.
func (j *joiner) take(s *endpoint) *manyCalls {
	m := &manyCalls{client: j.client, server: s}
	m.ctx, m.cancel = context.WithCancel(j.life)
	for len(m.calls) < len(j.queue) && m.add(j.queue[len(m.calls)]) {
	}
	for _, c := range m.calls {
		c.many = m
	}
	m.waiting.Store(int32(len(m.calls)))
	j.queue = append(j.queue[:0:0], j.queue[len(m.calls):]...)
	return m
}

// manyCalls is a request of many calls.
type manyCalls struct {
	client  *client
	server  *endpoint
	calls   []*joinedCall
	waiting atomic.Int32 // callers without an answer
	ctx     context.Context
	cancel  context.CancelFunc
	text    bytes.Buffer
}

const callsStart, callsEnd = `{"calls":[`, `]}`

// add adds a call, unless the request is full.
func (m *manyCalls) add(c *joinedCall) bool {
	if n := len(m.calls); n > 0 && (n == httpwire.MaxCalls || m.text.Len()+len(c.q.body)+len(`,{"acquire":}`)+len(callsEnd) > httpwire.MaxRenewal) {
		return false
	}
	before := ","
	if len(m.calls) == 0 {
		before = callsStart
	}
	for _, part := range []string{before, `{"`, c.op, `":`} {
		m.text.WriteString(part)
	}
	m.text.Write(c.q.body)
	m.text.WriteByte('}')
	m.calls = append(m.calls, c)
	return true
}

// left notes that a caller has gone, or has its answer. The last one ends the request.
func (m *manyCalls) left(c *joinedCall) {
	if !c.over.Swap(true) && m.waiting.Add(-1) == 0 {
		m.cancel()
	}
}

// send sends the request, and gives each call its answer.
func (m *manyCalls) send(s *slot) {
	defer m.cancel()
	defer s.free()
	m.text.WriteString(callsEnd)
	q := request{method: http.MethodPost, path: callsPath, body: m.text.Bytes(), status: http.StatusOK}
	for _, c := range m.calls {
		if c.q.secret != "" {
			q.secret = c.q.secret
		}
		if c.q.prepare != nil {
			_ = c.q.prepare(m.ctx, m.server) // only revocable locks need it, which are not joined
		}
	}
	resp, err := m.client.try(m.ctx, m.server, q)
	if err != nil {
		m.failed(err)
		return
	}
	defer resp.Body.Close()
	m.read(resp.Body, s)
}

// failed gives the calls the error of the request.
func (m *manyCalls) failed(err error) {
	if !isFact(err) {
		m.client.leave(m.ctx, m.server)
	}
	a := called{err: err}
	switch {
	case errors.Is(err, driver.ErrLost) || errors.Is(err, driver.ErrHeld):
		a.err = errors.New(err.Error()) // about all of them at once: no server says that
	case errors.Is(err, driver.ErrUnsent) || driver.Final(err):
		a = called{alone: true}
	}
	for _, c := range m.calls {
		c.done <- a
	}
}

// read gives the calls the lines of the answer.
func (m *manyCalls) read(body io.Reader, s *slot) {
	lines := json.NewDecoder(io.LimitReader(body, maxAnswer))
	answered := make([]bool, len(m.calls))
	why := errNoLine
	for n := range m.calls {
		var line struct {
			Index   int              `json:"index"`
			Outcome httpwire.Kind    `json:"outcome"`
			Grant   httpwire.Grant   `json:"grant"`
			Problem httpwire.Problem `json:"problem"`
		}
		if err := lines.Decode(&line); err != nil {
			if err != io.EOF {
				why = noAnswer(m.ctx, fmt.Errorf("the answer broke off: %w", err))
			}
			break
		}
		if line.Index < 0 || line.Index >= len(m.calls) || answered[line.Index] || line.Problem.Kind == "" != (line.Outcome == httpwire.OK) || line.Problem.Kind != "" && line.Problem.Kind != line.Outcome {
			why = errors.New("the answer is malformed")
			break
		}
		s.free()
		answered[line.Index] = true
		c := m.calls[line.Index]
		c.done <- m.answer(line.Grant, line.Problem)
		if n < len(m.calls)-1 { // else the end of the answer follows
			m.left(c)
		}
	}
	for i, c := range m.calls {
		if !answered[i] {
			m.client.leave(m.ctx, m.server)
			c.done <- called{err: why}
		}
	}
	defer time.AfterFunc(endTime, m.cancel).Stop()
	_, _ = io.Copy(io.Discard, io.LimitReader(body, 1)) // the end, after which the connection can be used again
}

// answer returns what a line says about its call.
func (m *manyCalls) answer(grant httpwire.Grant, p httpwire.Problem) called {
	if p.Kind == "" {
		return called{grant: grant}
	}
	err := p.Err()
	switch {
	case errors.Is(err, httpwire.ErrDenied), errors.Is(err, driver.ErrUnsent) && !errors.Is(err, driver.ErrSpent):
		return called{alone: true} // it finds the server that can help
	case !isFact(err):
		m.client.leave(m.ctx, m.server)
	}
	return called{err: err}
}
