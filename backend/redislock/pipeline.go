package redislock

import (
	"context"
	"runtime"
	"sync"

	"github.com/redis/go-redis/v9"
)

// once is a command that go-redis does not send a second time.
type once struct{ *redis.Cmd }

func (once) NoRetry() bool { return true }

// maxPipeline bounds what is sent at once.
const maxPipeline = 512

// pipeline sends the commands of many goroutines through one connection at a time:
// those that come while others are on their way wait, and are then sent together. So
// their order is kept, and who gives up waiting does not disturb the others. go-redis
// has something like it, which its authors call experimental.
type pipeline struct {
	client *redis.Client
	alone  *scissors // nil for a client that is not ours

	mu      sync.Mutex
	waiting []*pending
	sending bool
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
	if p.alone != nil && !p.sending {
		p.sending = true
		p.mu.Unlock()
		return p.doAlone(ctx, cmds)
	}
	x := &pending{cmds: cmds, done: make(chan struct{})}
	p.waiting = append(p.waiting, x)
	if !p.sending {
		p.sending = true
		go p.send()
	}
	p.mu.Unlock()
	select {
	case <-x.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// doAlone sends commands while nobody else does, from the caller's goroutine.
func (p *pipeline) doAlone(ctx context.Context, cmds []once) error {
	wasCut := p.alone.during(ctx, func() { p.exec(ctx, cmds) })
	p.mu.Lock()
	if wasCut {
		go func() {
			p.alone.outlive(p.client.Options().ReadTimeout)
			p.send()
		}()
	} else if len(p.waiting) > 0 {
		go p.send()
	} else {
		p.sending = false
	}
	p.mu.Unlock()
	if cmds[len(cmds)-1].Err() != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	return nil
}

// send lives as long as there is something to send.
func (p *pipeline) send() {
	for {
		batch := p.next()
		if batch == nil {
			return
		}
		p.exec(context.Background(), commands(batch))
		for _, x := range batch {
			close(x.done)
		}
		// Those who were answered just now may want more: let them join.
		runtime.Gosched()
	}
}

func (p *pipeline) next() []*pending {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.waiting) == 0 {
		p.sending, p.waiting = false, nil
		return nil
	}
	n := min(len(p.waiting), maxPipeline)
	batch := p.waiting[:n:n]
	p.waiting = p.waiting[n:]
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
func (p *pipeline) exec(ctx context.Context, cmds []once) {
	if len(cmds) == 1 {
		p.client.Process(ctx, cmds[0])
		return
	}
	pipe := p.client.Pipeline()
	for _, cmd := range cmds {
		pipe.Process(ctx, cmd)
	}
	pipe.Exec(ctx)
}
