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

// pipeline sends the commands of many goroutines through a user's client, which may have many connections. Commands that
// arrive while others are under way wait, and are then sent together. This keeps their order, and
// a caller that gives up does not disturb the others.
//
// Commands that wait for a late answer are sent by another goroutine, through another connection. Of those that are late there are maxFormer at most.
type pipeline struct {
	client *redis.Client

	mu      sync.Mutex
	waiting []*pipelineRequest
	current *sender // nil: nobody sends
	former  int     // senders that were late, and still are
	late    lateTimer
}

// sender is a goroutine that sends one pipeline after the other.
type sender struct{ began time.Time }

func newPipeline(c *redis.Client) *pipeline {
	p := &pipeline{client: c}
	if p.late.limit = c.Options().ReadTimeout; p.late.limit <= 0 {
		p.late.limit = defaultTimeout
	}
	p.late.fire = p.replaceLate
	return p
}

// pipelineRequest has commands that are sent together.
type pipelineRequest struct {
	cmds []singleTry
	done chan struct{}
}

// do returns once the commands have results, or with ctx's error if they have none.
// No other command comes between them.
func (p *pipeline) do(ctx context.Context, cmds []singleTry) error {
	if err := ctx.Err(); err != nil {
		return unwritten(err)
	}
	x := &pipelineRequest{cmds, make(chan struct{})}
	p.mu.Lock()
	p.waiting = append(p.waiting, x)
	if p.current == nil {
		p.begin()
	} else {
		p.late.waits(ctx, p.current.began)
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
		return unwritten(ctx.Err())
	}
	return &UnansweredError{Err: ctx.Err(), Done: x.done}
}

// begin starts a sender. The mutex is held.
func (p *pipeline) begin() {
	p.current = &sender{time.Now()}
	go p.send(p.current)
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

func (p *pipeline) replaceLate() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.replaceIfLate()
}

// replaceIfLate lets another goroutine send if the present one is late. The mutex is held.
func (p *pipeline) replaceIfLate() {
	if p.current != nil && len(p.waiting) > 0 && p.late.due(p.current.began) {
		p.replace()
	}
}

// replace lets another goroutine send. The mutex is held.
func (p *pipeline) replace() {
	if p.current == nil || p.former == maxFormer {
		return
	}
	p.former++
	p.current = nil
	if len(p.waiting) > 0 {
		p.begin()
	}
}

// reconnect lets later commands not wait for those that are under way.
func (p *pipeline) reconnect() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.replace()
}

// send sends requests as long as there are any, or until another goroutine does.
func (p *pipeline) send(s *sender) {
	for {
		batch := p.next(s)
		if batch == nil {
			return
		}
		var cmds []singleTry
		for _, x := range batch {
			cmds = append(cmds, x.cmds...)
		}
		execPipeline(context.Background(), p.client.Pipeline(), cmds)
		for _, x := range batch {
			close(x.done)
		}
		// Callers that were just answered may send more: let them join.
		runtime.Gosched()
	}
}

func (p *pipeline) next(s *sender) []*pipelineRequest {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.current != s {
		p.former--
		p.replaceIfLate() // the new one may be late as well
		return nil
	}
	p.late.nobody()
	if len(p.waiting) == 0 {
		p.current, p.waiting = nil, nil
		return nil
	}
	n := min(len(p.waiting), maxPipeline)
	batch := p.waiting[:n:n]
	p.waiting = p.waiting[n:]
	if s.began = time.Now(); len(p.waiting) > 0 {
		p.late.waits(context.Background(), s.began)
	}
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
