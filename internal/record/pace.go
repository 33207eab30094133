package record

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/distlock/distlock/internal/wait"
)

const (
	// MinGap is the time between two reads of a client's waiters where reads cost money, and the first that a busy store
	// makes it; maxGap is the longest.
	MinGap = 20 * time.Millisecond
	maxGap = 64 * MinGap

	// Burst is how many reads may follow each other at once.
	Burst = 10
)

// Pace bounds how many reads the waiters of a client make in a second, in a Store that embeds it. A holder never waits for
// it.
type Pace struct {
	Gap time.Duration // between two reads, of a store that is not busy

	mu   sync.Mutex
	next time.Time     // of the next read, if reads never came in bursts
	more time.Duration // than Gap is between reads, for a store that is busy
}

// turn waits for the turn of a read. It does not take one that ctx would not live to see.
func (p *Pace) turn(ctx context.Context) error {
	p.mu.Lock()
	now, gap := time.Now(), p.Gap+p.more
	at := p.next
	if first := now.Add(-Burst * gap); at.Before(first) {
		at = first
	}
	if end, ok := ctx.Deadline(); ok && at.After(end) {
		defer p.mu.Unlock()
		return fmt.Errorf("this client may read once in %v, and others come first", gap)
	}
	p.next = at.Add(gap)
	p.mu.Unlock()
	return wait.Sleep(ctx, at.Sub(now))
}

// Answered notes whether the store wants fewer requests.
func (p *Pace) Answered(busy bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if busy {
		p.more = min(MinGap+2*p.more, maxGap-MinGap)
	} else {
		p.more -= p.more / 8
	}
}
