package redisconn

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// singleTry is a command that go-redis does not send a second time.
type singleTry struct{ *redis.Cmd }

func (singleTry) NoRetry() bool { return true }

// maxPipeline bounds what is sent at once.
const maxPipeline = 512

// pipeline sends the commands of many goroutines through one connection at a time:
// those that come while others are on their way wait, and are then sent together. So
// their order is kept, and who gives up waiting does not disturb the others. go-redis
// has something like it, which its authors call experimental.
//
// A connection without an answer is left: a firewall that forgot it says nothing, and a new
// one may get through at once. What was sent stays with the old connection, which ends once
// that is answered or has taken too long. There are two of them at most. So the order of
// commands is kept on a connection only: see unanswered.
type pipeline struct {
	open func() *pipelineConn

	mu       sync.Mutex
	current  *pipelineConn
	previous *pipelineConn // was left, and has not ended; may be nil
	waiting  []*pipelineRequest
	sending  bool // through now
	late     lateTimer
	closed   bool
}

// pipelineConn is a client that has one connection; or a user's, whose pool has more.
type pipelineConn struct {
	client      *redis.Client
	interrupter *interrupter // nil for a client that is not ours
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

type pipelineRequest struct {
	cmds []singleTry
	done chan struct{}
}

// do returns when the commands have their results, or with ctx's error: then they may
// still be executed. Nothing comes between them.
func (p *pipeline) do(ctx context.Context, cmds ...singleTry) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	p.mu.Lock()
	if p.current.interrupter != nil && !p.sending {
		p.sending = true
		p.late.begin(false)
		c := p.current
		p.mu.Unlock()
		return p.doDirectly(ctx, c, cmds)
	}
	x := &pipelineRequest{cmds: cmds, done: make(chan struct{})}
	p.waiting = append(p.waiting, x)
	if !p.sending {
		p.sending = true
		p.late.begin(false)
		go p.send(p.current)
	} else {
		p.late.queued(ctx)
	}
	p.mu.Unlock()
	select {
	case <-x.done:
		return nil
	case <-ctx.Done():
		if p.withdraw(x) {
			return ctx.Err()
		}
		return &UnansweredError{Err: ctx.Err(), Done: x.done}
	}
}

// withdraw takes back what was not sent yet, and reports whether it could. Without that a
// silent server would be owed the commands of all who gave up meanwhile.
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

// doDirectly sends commands while nobody else does, from the caller's goroutine.
func (p *pipeline) doDirectly(ctx context.Context, c *pipelineConn, cmds []singleTry) error {
	wasCut := c.interrupter.run(ctx, func() { c.exec(ctx, cmds) })
	var landed chan struct{}
	p.mu.Lock()
	switch {
	case wasCut:
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
	if cmds[len(cmds)-1].Err() != nil && ctx.Err() != nil {
		if wasCut {
			return &UnansweredError{Err: ctx.Err(), Done: landed}
		}
		return ctx.Err()
	}
	return nil
}

// drain waits for what becomes of commands that were cut.
func (p *pipeline) drain(c *pipelineConn, landed chan struct{}) {
	c.interrupter.awaitAnswer(c.client.Options().ReadTimeout)
	close(landed)
	p.send(c)
}

// replaceIfLate goes on through another connection if that in use is overdue, or if somebody knows
// that it should.
func (p *pipeline) replaceIfLate(known bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.sending && p.previous == nil && !p.closed && (known || p.late.due()) {
		p.replace()
	}
}

// replace leaves the connection. The mutex is held.
func (p *pipeline) replace() {
	p.previous, p.current = p.current, p.open()
	p.sending = len(p.waiting) > 0
	p.late.begin(false)
	if p.sending {
		go p.send(p.current)
	}
}

// retire closes a connection that was left. Its successor may be no better. The mutex is held.
func (p *pipeline) retire(c *pipelineConn) {
	p.previous = nil
	c.close()
	if p.sending && !p.closed && p.late.due() {
		p.replace()
	}
}

// close ends whatever still waits for an answer.
func (p *pipeline) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	p.current.close()
	if p.previous != nil {
		p.previous.close()
	}
}

func (c *pipelineConn) close() {
	if c.interrupter != nil {
		c.client.Close()
		c.interrupter.close()
	}
}

// send lives as long as there is something to send.
func (p *pipeline) send(c *pipelineConn) {
	for {
		batch := p.next(c)
		if batch == nil {
			return
		}
		c.exec(context.Background(), commands(batch))
		for _, x := range batch {
			close(x.done)
		}
		// Those who were answered just now may want more: let them join.
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

func commands(batch []*pipelineRequest) []singleTry {
	if len(batch) == 1 {
		return batch[0].cmds
	}
	list := make([]singleTry, 0, len(batch))
	for _, x := range batch {
		list = append(list, x.cmds...)
	}
	return list
}

// exec leaves each command's error in the command.
func (c *pipelineConn) exec(ctx context.Context, cmds []singleTry) {
	if len(cmds) == 1 {
		c.client.Process(ctx, cmds[0])
		return
	}
	pipe := c.client.Pipeline()
	for _, cmd := range cmds {
		pipe.Process(ctx, cmd)
	}
	pipe.Exec(ctx)
}

// minAnswerTime is what an answer may always take: a caller whose time is almost over is no
// reason to make a new connection.
const minAnswerTime = 100 * time.Millisecond

// lateTimer finds out when a request that is under way on a connection has had no answer for
// so long that those behind it must go on another one: for half of the time that one of
// them has. Its owner's mutex guards it, but for fire, which is called without.
type lateTimer struct {
	limit time.Duration // of a caller that has no deadline
	fire  func()

	began time.Time
	at    time.Time // zero: nobody waits
	timer *time.Timer
}

// begin: a request goes out. Behind it are others already if left.
func (o *lateTimer) begin(left bool) {
	o.began, o.at = time.Now(), time.Time{}
	if left {
		o.queued(context.Background())
	}
}

// queued: a caller with this context waits behind the request.
func (o *lateTimer) queued(ctx context.Context) {
	has := o.limit
	if end, ok := ctx.Deadline(); ok {
		has = min(has, time.Until(end))
	}
	// A timer for each caller would cost more than it is worth: a little later will do.
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

// due reports whether somebody has waited for long enough.
func (o *lateTimer) due() bool { return !o.at.IsZero() && !time.Now().Before(o.at) }

// defaultTimeout is how long an answer may take if nobody says so.
const defaultTimeout = 5 * time.Second
