package distlock

import (
	"context"
	"errors"
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

// releaseUntilAnswered gives up when the TTL has passed, or, where a hold may live as long
// as a session, when the client is closed too.
func (c *Client) releaseUntilAnswered(h driver.Hold) {
	bound := defaultCallTimeout(h.TTL)
	end := c.now() + h.TTL + bound
	for try := 0; c.now() < end || c.caps.Session && !c.isClosed(); try++ {
		ctx, cancel := context.WithTimeout(context.Background(), bound)
		err := c.backend.Release(ctx, h)
		cancel()
		if err == nil || errors.Is(err, ErrLost) || driver.Final(err) {
			return
		}
		time.Sleep(jitter(backoff(try, firstPause, maxWait)))
	}
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
