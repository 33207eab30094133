package distlock

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/distlock/distlock/driver"
)

// tasks counts what Close has to wait for.
type tasks struct {
	n    atomic.Int64
	idle chan struct{} // of one
}

func (t *tasks) begin() { t.n.Add(1) }

func (t *tasks) end() {
	if t.n.Add(-1) == 0 {
		select {
		case t.idle <- struct{}{}:
		default:
		}
	}
}

// wait waits until there are none, or ctx ends: then it reports false.
func (t *tasks) wait(ctx context.Context) bool {
	for t.n.Load() > 0 {
		select {
		case <-t.idle:
		case <-ctx.Done():
			return t.n.Load() == 0
		}
	}
	return true
}

// abandon releases in the background what an Owner may hold that nobody uses: again
// and again until the backend answers, or its TTL has passed. It begins when a call
// for that Owner that is in flight is over.
func (c *Client) abandon(h driver.Hold, inFlight <-chan struct{}) {
	c.tasks.begin()
	go func() {
		defer c.tasks.end()
		if inFlight != nil {
			<-inFlight
		}
		c.releaseUntilAnswered(h)
	}()
}

// releaseUntilAnswered gives up when the TTL has passed. Where a hold may live as long as a
// session it joins the backlog then.
func (c *Client) releaseUntilAnswered(h driver.Hold) {
	end := c.now() + h.TTL + defaultCallTimeout(h.TTL)
	for try := 0; c.now() < end; try++ {
		if c.releaseOnce(h) {
			return
		}
		time.Sleep(jitter(backoff(try, firstPause, maxWait)))
	}
	if c.caps.Session {
		c.releaseLater(h)
	}
}

// releaseOnce reports whether there was an answer.
func (c *Client) releaseOnce(h driver.Hold) bool {
	ctx, cancel := context.WithTimeout(context.Background(), defaultCallTimeout(h.TTL))
	defer cancel()
	err := c.backend.Release(ctx, h)
	return err == nil || errors.Is(err, ErrLost) || driver.Final(err)
}

// backlog is what could not be released for long. It is tried on one by one, so that a
// backend that is away for hours costs no goroutine for each.
type backlog struct {
	mu    sync.Mutex
	holds []driver.Hold
}

func (c *Client) releaseLater(h driver.Hold) {
	c.backlog.mu.Lock()
	defer c.backlog.mu.Unlock()
	c.backlog.holds = append(c.backlog.holds, h)
	if len(c.backlog.holds) == 1 {
		c.tasks.begin()
		go c.workOff()
	}
}

// workOff releases the backlog, until it is empty or the client is closed.
func (c *Client) workOff() {
	defer c.tasks.end()
	failures := 0
	for left := 1; left > 0 && !c.isClosed(); {
		h := c.backlog.first()
		answered := c.releaseOnce(h)
		if left = c.backlog.done(h, answered); answered {
			failures = 0
			continue
		}
		sleep(c.life, jitter(backoff(failures, firstPause, maxWait)))
		failures++
	}
}

func (b *backlog) first() driver.Hold {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.holds[0]
}

// done takes the first hold away, or puts it last, and returns how many there are.
func (b *backlog) done(h driver.Hold, answered bool) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.holds = b.holds[1:]
	if !answered {
		b.holds = append(b.holds, h)
	}
	return len(b.holds)
}

// after calls f in d, or when the client closes.
func (c *Client) after(d time.Duration, f func()) {
	c.tasks.begin()
	go func() {
		defer c.tasks.end()
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-t.C:
		case <-c.done:
		}
		f()
	}()
}
