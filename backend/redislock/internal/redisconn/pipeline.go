package redisconn

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/distlock/distlock/internal/bounded"
)

// singleTry is a command that go-redis sends only once.
type singleTry struct{ *redis.Cmd }

func (singleTry) NoRetry() bool { return true }

// maxPipeline is the maximum of requests that are sent together.
const maxPipeline = 512

// pipeline sends the commands of many goroutines through one connection at a time. Commands that
// arrive while others are under way wait, and are then sent together. This keeps their order, and
// a caller that gives up does not disturb the others.
//
// A connection without an answer is replaced: a firewall that has forgotten it says nothing, and a
// new one may work at once. Commands that were sent stay with the old connection, which ends once
// they are answered or time out. There are at most two connections, so the order of commands is
// kept on each connection only: see UnansweredError.
type pipeline struct {
	open func() *pipelineConn // makes a client with one connection, or returns a user's with a pool

	mu       sync.Mutex
	current  *pipelineConn
	previous *pipelineConn // replaced, and not closed yet; may be nil
	waiting  []*pipelineRequest
	sending  bool // through current
	late     lateTimer
	closed   bool
}

func newPipeline(open func() *pipelineConn) *pipeline {
	p := &pipeline{open: open, current: open()}
	p.late.limit = p.current.client.Options().ReadTimeout
	if p.late.limit <= 0 {
		p.late.limit = defaultTimeout
	}
	p.late.fire = func() { p.replaceIfLate(false) }
	return p
}

// pipelineRequest has commands that are sent together.
type pipelineRequest struct {
	cmds []singleTry
	done chan struct{} // nil if the caller sends them itself

	one  [1]singleTry // room for a single command
	args [11]any      // and for its words, if they are no more
}

func (x *pipelineRequest) failed() bool { return x.cmds[len(x.cmds)-1].Err() != nil }

// do returns once the commands of x have results, or with ctx's error if they may still be executed.
// No other command comes between them.
func (p *pipeline) do(ctx context.Context, x *pipelineRequest) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	p.mu.Lock()
	if p.current.own && !p.sending {
		p.sending = true
		p.late.begin(false)
		c := p.current
		p.mu.Unlock()
		return p.doDirectly(ctx, c, x)
	}
	x.done = make(chan struct{})
	p.waiting = append(p.waiting, x)
	if !p.sending {
		p.sending = true
		p.late.begin(false)
		go p.send(p.current)
	} else {
		p.late.queued(ctx)
	}
	p.mu.Unlock()
	first, second := bounded.Ends(ctx)
	select {
	case <-x.done:
		return nil
	case <-first:
	case <-second:
	}
	if p.withdraw(x) {
		return ctx.Err()
	}
	return &UnansweredError{Err: ctx.Err(), Done: x.done}
}

// withdraw removes a request that was not sent yet, and reports whether it could. Otherwise
// requests that were given up would pile up before a silent server.
func (p *pipeline) withdraw(x *pipelineRequest) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := slices.Index(p.waiting, x)
	if i < 0 {
		return false
	}
	p.waiting = slices.Delete(p.waiting, i, i+1)
	return true
}

// doDirectly sends commands from the caller's goroutine, while no others are sent: to wake another one and wait for it costs
// a caller that is alone as much as the server's answer.
func (p *pipeline) doDirectly(ctx context.Context, c *pipelineConn, x *pipelineRequest) error {
	stop := context.AfterFunc(ctx, c.interrupt)
	c.exec(ctx, x.cmds)
	interrupted := !stop()
	var landed chan struct{}
	p.mu.Lock()
	switch {
	case interrupted:
		c.interrupt() // which may be under way elsewhere, or not have begun
		landed = make(chan struct{})
		if p.current == c && p.previous == nil && !p.closed {
			p.replace()
		}
		go p.drain(c, landed)
	case p.current != c:
		p.retire(c)
	case len(p.waiting) > 0:
		go p.send(c)
	default:
		p.sending = false
	}
	p.mu.Unlock()
	switch {
	case !x.failed() || ctx.Err() == nil:
		return nil
	case interrupted:
		return &UnansweredError{Err: ctx.Err(), Done: landed}
	}
	return ctx.Err()
}

// drain waits for the outcome of commands that were interrupted. Their connection is not used again.
func (p *pipeline) drain(c *pipelineConn, landed chan struct{}) {
	c.awaitAnswer()
	close(landed)
	p.mu.Lock()
	if p.current == c && !p.closed {
		c.close()
		c = p.open()
		p.current = c
	}
	p.mu.Unlock()
	p.send(c)
}

// replaceIfLate replaces the connection if an answer is late, or known to be missing.
func (p *pipeline) replaceIfLate(known bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.sending && p.previous == nil && !p.closed && (known || p.late.due()) {
		p.replace()
	}
}

// replace continues with a new connection. The mutex is held.
func (p *pipeline) replace() {
	p.previous, p.current = p.current, p.open()
	p.sending = len(p.waiting) > 0
	p.late.begin(false)
	if p.sending {
		go p.send(p.current)
	}
}

// retire closes a connection that was replaced. The new one may be late as well. The mutex is
// held.
func (p *pipeline) retire(c *pipelineConn) {
	p.previous = nil
	c.close()
	if p.sending && !p.closed && p.late.due() {
		p.replace()
	}
}

// close ends both connections, and with them the commands under way.
func (p *pipeline) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	p.current.close()
	if p.previous != nil {
		p.previous.close()
	}
}

// send sends requests as long as there are any.
func (p *pipeline) send(c *pipelineConn) {
	for {
		batch := p.next(c)
		if batch == nil {
			return
		}
		cmds := batch[0].cmds
		for _, x := range batch[1:] {
			cmds = append(cmds, x.cmds...)
		}
		c.exec(context.Background(), cmds)
		for _, x := range batch {
			close(x.done)
		}
		// Callers that were just answered may send more: let them join.
		runtime.Gosched()
	}
}

func (p *pipeline) next(c *pipelineConn) []*pipelineRequest {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.current != c {
		p.retire(c)
		return nil
	}
	if len(p.waiting) == 0 {
		p.sending, p.waiting = false, nil
		return nil
	}
	n := min(len(p.waiting), maxPipeline)
	batch := p.waiting[:n:n]
	p.waiting = p.waiting[n:]
	p.late.begin(len(p.waiting) > 0)
	return batch
}

// execPipeline sends commands. If the server refuses the handshake of a new connection, go-redis sends none of them, and
// returns the server's error without giving it to them: they would look like commands with empty answers.
func execPipeline(ctx context.Context, pipe redis.Pipeliner, cmds []singleTry) {
	for _, cmd := range cmds {
		pipe.Process(ctx, cmd)
	}
	_, err := pipe.Exec(ctx)
	if err == nil || slices.ContainsFunc(cmds, func(cmd singleTry) bool { return cmd.Err() != nil }) {
		return
	}
	for _, cmd := range cmds {
		cmd.SetErr(err)
	}
}

// minAnswerTime is granted to every answer: a caller whose time is almost over is no reason for a
// new connection.
const minAnswerTime = 100 * time.Millisecond

// lateTimer fires when the answer to a request is late for the requests behind it: when half of
// the time is over that one of them has. The owner's mutex guards it, but fire is called without.
type lateTimer struct {
	limit time.Duration // of a caller without a deadline
	fire  func()

	began time.Time
	at    time.Time // zero: no caller waits
	timer *time.Timer
}

// begin notes that a request was sent, and whether others wait behind it.
func (o *lateTimer) begin(left bool) {
	o.began, o.at = time.Now(), time.Time{}
	if left {
		o.queued(context.Background())
	}
}

// queued notes that a caller with this context waits behind the request.
func (o *lateTimer) queued(ctx context.Context) {
	has := o.limit
	if end, ok := ctx.Deadline(); ok {
		has = min(has, time.Until(end))
	}
	// A timer for each caller would cost more. A little later is soon enough.
	at := o.began.Add(max(has/2, minAnswerTime))
	if !o.at.IsZero() && o.at.Before(at.Add(has/8)) {
		return
	}
	o.at = at
	if o.timer == nil {
		o.timer = time.AfterFunc(time.Until(at), o.fire)
		return
	}
	o.timer.Reset(time.Until(at))
}

// due reports whether the answer is late.
func (o *lateTimer) due() bool { return !o.at.IsZero() && !time.Now().Before(o.at) }

// defaultTimeout is the timeout of an answer without ReadTimeout.
const defaultTimeout = 5 * time.Second
