package s3lock

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/wait"
)

const (
	// poll is the shortest pause of one waiter. The core makes it up to sixteen times as long.
	poll = 250 * time.Millisecond

	// minGap is the time between two reads of a client's waiters; maxGap is as long as a busy store makes it.
	minGap = 20 * time.Millisecond
	maxGap = 64 * minGap

	// burst is how many reads may follow each other at once.
	burst = 10
)

// pacer bounds how many reads a client's waiters make in a second. Who holds is never kept waiting.
type pacer struct {
	mu   sync.Mutex
	next time.Time // of the next read, if reads never came in bursts
	gap  time.Duration
}

// turn waits for the turn of a read. It does not take one that ctx would not live to see.
func (p *pacer) turn(ctx context.Context) error {
	p.mu.Lock()
	now := time.Now()
	at := p.next
	if first := now.Add(-burst * p.gap); at.Before(first) {
		at = first
	}
	if end, ok := ctx.Deadline(); ok && at.After(end) {
		defer p.mu.Unlock()
		return driver.Unsent(fmt.Errorf("this client may read once in %v, and others come first", p.gap))
	}
	p.next = at.Add(p.gap)
	p.mu.Unlock()
	if !at.After(now) {
		return nil
	}
	return driver.Unsent(wait.Sleep(ctx, at.Sub(now)))
}

// answered notes whether the store wants fewer requests.
func (p *pacer) answered(busy bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if busy {
		p.gap = min(2*p.gap, maxGap)
	} else {
		p.gap = max(p.gap-p.gap/8, minGap)
	}
}
