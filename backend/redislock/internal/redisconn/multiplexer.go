package redisconn

import (
	"context"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/distlock/distlock/internal/bounded"
)

// multiplexer sends the commands of many goroutines through one connection, and keeps their order there. Many are on their way at
// a time. It knows what it has written: a caller that gives up takes back what is not.
//
// A server that owes an answer and is silent gets no more: what is queued goes to a new connection once the server is late. A
// firewall that has forgotten a connection says nothing, and a new one may work at once. What was written stays with the old
// connection, until it is answered or times out. A new one may die as well: there are maxFormer of old at most.
type multiplexer struct {
	open    func(ctx context.Context) (*wire, error)
	timeout time.Duration   // of an answer
	ctx     context.Context // ends at close
	cancel  context.CancelFunc

	requests sync.Pool // that are used again

	mu      sync.Mutex
	queue   []*request // of which nothing was written
	current *pipe      // nil: there is none
	former  []*pipe    // replaced, and owe answers
	dialing int        // attempts to make a connection
	dialed  time.Time  // when the latest one began
	late    lateTimer  // of current or of dialing, for the queue
	closed  bool
}

func newMultiplexer(timeout time.Duration, open func(ctx context.Context) (*wire, error)) *multiplexer {
	m := &multiplexer{open: open, timeout: timeout, requests: sync.Pool{New: func() any { return &request{over: make(chan struct{}, 1)} }}}
	m.ctx, m.cancel = context.WithCancel(context.Background())
	m.late.limit, m.late.fire = timeout, m.replaceLate
	return m
}

// do sends commands, and returns an answer for each.
func (m *multiplexer) do(ctx context.Context, commands [][]string) []Answer {
	x := m.request(commands)
	if err := m.send(ctx, x); err != nil {
		return FailAll(len(commands), err)
	}
	defer m.free(x)
	return x.answers
}

// send returns nil once x is over. Otherwise x was given up: its error is an *UnansweredError if it may have been written, and an
// unwrittenError if not.
func (m *multiplexer) send(ctx context.Context, x *request) error {
	if err := ctx.Err(); err != nil {
		return unwritten(err)
	}
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return unwritten(ErrClientClosed)
	}
	m.queue = append(m.queue, x)
	switch c := m.current; {
	case c == nil:
		if m.dialing == 0 {
			m.dial()
		}
		m.late.waits(ctx, m.dialed)
	case c.writing:
		// It will be written along.
	case !c.takes():
		m.late.waits(ctx, c.silent)
	case !c.reading && !c.crowded && c.owed+x.size <= aloneBytes && patient(ctx):
		return m.sendAlone(ctx, c, x)
	default:
		m.writeMore(c) // others may have more to write until it runs
	}
	m.mu.Unlock()
	return m.await(ctx, x)
}

// await waits for the end of x, or takes it back.
func (m *multiplexer) await(ctx context.Context, x *request) error {
	first, second := bounded.Ends(ctx)
	select {
	case <-x.over:
		return nil
	case <-first:
	case <-second:
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	switch x.stage {
	case queued:
		i := slices.Index(m.queue, x)
		m.setQueue(slices.Delete(m.queue, i, i+1))
		return unwritten(ctx.Err())
	case over:
		<-x.over
		return nil
	}
	x.later = make(chan struct{})
	if c := m.current; c != nil && time.Since(c.silent) >= minAnswerTime {
		m.replace()
	}
	return &UnansweredError{Err: ctx.Err(), Done: x.later}
}

func (m *multiplexer) setQueue(queue []*request) {
	if m.queue = queue; len(queue) == 0 {
		m.late.nobody()
	}
}

// maxDials is how many connections are in the making at once: the next one when the server is late to let us in.
const maxDials = 2

// dial begins to make a connection. If no other is in the making, and it fails, all that is queued fails.
func (m *multiplexer) dial() {
	m.dialing++
	m.dialed = time.Now()
	go func() {
		w, err := m.open(m.ctx)
		m.mu.Lock()
		defer m.mu.Unlock()
		m.dialing--
		switch {
		case err == nil && (m.closed || m.current != nil):
			w.Close()
		case err == nil:
			m.current = &pipe{wire: w}
			m.write(m.current)
		case m.dialing == 0 && m.current == nil:
			m.failQueue(err)
		}
	}()
}

func (m *multiplexer) failQueue(err error) {
	for _, x := range m.queue {
		x.fail(unwritten(err))
		x.end(nil)
	}
	m.setQueue(nil)
}

func (m *multiplexer) replaceLate() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.replaceIfLate()
}

func (m *multiplexer) replaceIfLate() {
	switch {
	case len(m.queue) == 0:
	case m.current != nil && m.late.due(m.current.silent):
		m.replace()
	case m.current == nil && m.dialing > 0 && m.dialing < maxDials && m.late.due(m.dialed):
		m.dial()
	}
}

// replace lets later requests use a new connection if the present one owes an answer, and there are not too many others.
func (m *multiplexer) replace() {
	if m.current == nil || !m.current.reading || len(m.former) == maxFormer || m.closed {
		return
	}
	m.former, m.current = append(m.former, m.current), nil
	if len(m.queue) > 0 && m.dialing == 0 {
		m.dial()
	}
}

// reconnect replaces the connection if it owes an answer.
func (m *multiplexer) reconnect() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.replace()
}

// fail ends a connection. What it owes has an unknown outcome, but for what is just being written: the writer knows more of that.
func (m *multiplexer) fail(c *pipe, err error) {
	if c.broken == nil {
		c.broken = err
		c.Close()
	}
	for _, x := range c.takeSent(c.batch) {
		x.fail(c.broken)
		x.end(x.later)
	}
	m.forget(c)
}

// forget is called when c is broken, or was replaced and owes nothing.
func (m *multiplexer) forget(c *pipe) {
	switch i := slices.Index(m.former, c); {
	case c == m.current:
		m.current = nil
		if len(m.queue) > 0 && m.dialing == 0 && !m.closed {
			m.dial()
		}
	case i >= 0:
		c.Close()
		m.former = slices.Delete(m.former, i, i+1)
		m.replaceIfLate()
	}
}

// close ends all connections, and all that waits.
func (m *multiplexer) close() {
	m.cancel()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	for _, c := range append(slices.Clone(m.former), m.current) {
		if c != nil {
			m.fail(c, net.ErrClosed)
		}
	}
	m.failQueue(ErrClientClosed)
}

// minAnswerTime is granted to every answer: a caller whose time is almost over is no reason for a
// new connection.
const minAnswerTime = 100 * time.Millisecond

// maxFormer is how many connections that are silent are kept beside the one in use, until their answers are out of time: two that die
// in silence, one after the other, must not cost a lease of three seconds.
const maxFormer = 3

// lateTimer fires when a server has been silent for too long for the requests behind those that it has not answered: for half of the
// time that one of them has. The owner's mutex guards it, but fire is called without.
type lateTimer struct {
	limit time.Duration // of a caller without a deadline
	fire  func()

	patience time.Duration // with the server; zero: nobody waits
	timer    *time.Timer
}

// waits notes that a caller with this context waits for a server that has been silent since then.
func (l *lateTimer) waits(ctx context.Context, since time.Time) {
	has := l.limit
	if end, ok := ctx.Deadline(); ok {
		has = min(has, time.Until(end))
	}
	// A timer for each caller would cost more. A little later is soon enough.
	patience := max(has/2, minAnswerTime)
	if l.patience > 0 && l.patience < patience+patience/4 {
		return
	}
	l.patience = patience
	l.arm(since)
}

func (l *lateTimer) arm(since time.Time) {
	left := time.Until(since.Add(l.patience))
	if l.timer == nil {
		l.timer = time.AfterFunc(left, l.fire)
		return
	}
	l.timer.Reset(left)
}

// nobody notes that no caller waits.
func (l *lateTimer) nobody() { l.patience = 0 }

// due reports whether a server that has been silent since then is late. If it may become so, the timer goes on.
func (l *lateTimer) due(since time.Time) bool {
	if l.patience == 0 {
		return false
	}
	if time.Since(since) >= l.patience {
		return true
	}
	l.arm(since)
	return false
}
