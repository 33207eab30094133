package redisconn

import (
	"context"
	"runtime"
	"slices"
	"sync"

	"github.com/redis/go-redis/v9"
)

// once is a command that go-redis does not send a second time.
type once struct{ *redis.Cmd }

func (once) NoRetry() bool { return true }

// MaxPipeline bounds what is sent at once.
const MaxPipeline = 512

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
	open func() *pipeConn

	mu      sync.Mutex
	now     *pipeConn
	old     *pipeConn // was left, and has not ended; may be nil
	waiting []*pending
	sending bool // through now
	overdue Overdue
	closed  bool
}

// pipeConn is a client that has one connection; or a user's, whose pool has more.
type pipeConn struct {
	client *redis.Client
	alone  *scissors // nil for a client that is not ours
}

func newPipeline(open func() *pipeConn) *pipeline {
	p := &pipeline{open: open, now: open()}
	p.overdue.Limit = p.now.client.Options().ReadTimeout
	if p.overdue.Limit <= 0 {
		p.overdue.Limit = DefaultTimeout
	}
	p.overdue.Fire = func() { p.leave(false) }
	return p
}

type pending struct {
	cmds []once
	done chan struct{}
}

// do returns when the commands have their results, or with ctx's error: then they may
// still be executed. Nothing comes between them.
func (p *pipeline) do(ctx context.Context, cmds ...once) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	p.mu.Lock()
	if p.now.alone != nil && !p.sending {
		p.sending = true
		p.overdue.Begin(false)
		c := p.now
		p.mu.Unlock()
		return p.doAlone(ctx, c, cmds)
	}
	x := &pending{cmds: cmds, done: make(chan struct{})}
	p.waiting = append(p.waiting, x)
	if !p.sending {
		p.sending = true
		p.overdue.Begin(false)
		go p.send(p.now)
	} else {
		p.overdue.Behind(ctx)
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
func (p *pipeline) withdraw(x *pending) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := slices.Index(p.waiting, x)
	if i < 0 {
		return false
	}
	p.waiting = slices.Delete(p.waiting, i, i+1)
	return true
}

// doAlone sends commands while nobody else does, from the caller's goroutine.
func (p *pipeline) doAlone(ctx context.Context, c *pipeConn, cmds []once) error {
	wasCut := c.alone.during(ctx, func() { c.exec(ctx, cmds) })
	var landed chan struct{}
	p.mu.Lock()
	switch {
	case wasCut:
		landed = make(chan struct{})
		if p.now == c && p.old == nil && !p.closed {
			p.replace()
		}
		go p.drain(c, landed)
	case p.now != c:
		p.end(c)
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
func (p *pipeline) drain(c *pipeConn, landed chan struct{}) {
	c.alone.outlive(c.client.Options().ReadTimeout)
	close(landed)
	p.send(c)
}

// leave goes on through another connection if that in use is overdue, or if somebody knows
// that it should.
func (p *pipeline) leave(known bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.sending && p.old == nil && !p.closed && (known || p.overdue.Due()) {
		p.replace()
	}
}

// replace leaves the connection. The mutex is held.
func (p *pipeline) replace() {
	p.old, p.now = p.now, p.open()
	p.sending = len(p.waiting) > 0
	p.overdue.Begin(false)
	if p.sending {
		go p.send(p.now)
	}
}

// end closes a connection that was left. Its successor may be no better. The mutex is held.
func (p *pipeline) end(c *pipeConn) {
	p.old = nil
	c.close()
	if p.sending && !p.closed && p.overdue.Due() {
		p.replace()
	}
}

// close ends whatever still waits for an answer.
func (p *pipeline) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	p.now.close()
	if p.old != nil {
		p.old.close()
	}
}

func (c *pipeConn) close() {
	if c.alone != nil {
		c.client.Close()
		c.alone.close()
	}
}

// send lives as long as there is something to send.
func (p *pipeline) send(c *pipeConn) {
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

func (p *pipeline) next(c *pipeConn) []*pending {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.now != c {
		p.end(c)
		return nil
	}
	if len(p.waiting) == 0 {
		p.sending, p.waiting = false, nil
		return nil
	}
	n := min(len(p.waiting), MaxPipeline)
	batch := p.waiting[:n:n]
	p.waiting = p.waiting[n:]
	p.overdue.Begin(len(p.waiting) > 0)
	return batch
}

func commands(batch []*pending) []once {
	if len(batch) == 1 {
		return batch[0].cmds
	}
	list := make([]once, 0, len(batch))
	for _, x := range batch {
		list = append(list, x.cmds...)
	}
	return list
}

// exec leaves each command's error in the command.
func (c *pipeConn) exec(ctx context.Context, cmds []once) {
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
