package connlock

import (
	"cmp"
	"context"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/wait"
)

// waitSlice is the time of one wait in the server's queue: a longer one holds back vacuum, and its client may have died.
const waitSlice = 10 * time.Second

// Watch waits in the server's queue, on a connection of its own, and takes the lock for r's Owner.
func (b *Backend) Watch(ctx context.Context, r driver.Request) (driver.Watch, error) {
	if err := cmp.Or(r.Validate(b.caps), ctx.Err()); err != nil {
		return driver.Watch{}, err
	}
	own, end := context.WithCancel(b.ctx)
	ready, done := wait.NewSignal(), make(chan struct{})
	run := func() {
		defer close(done)
		for b.wait(own, r) != nil && own.Err() == nil {
			ready.Notify() // the waiter's own attempt may succeed
			wait.Sleep(own, retryPause)
		}
		ready.Notify()
	}
	if !b.goTask(run) {
		end()
		return driver.Watch{}, driver.ErrClosed
	}
	return driver.Watch{Ready: ready, Close: func() { end(); <-done }}, nil
}

// wait waits until it has the lock, ctx ends or a connection fails.
func (b *Backend) wait(ctx context.Context, r driver.Request) error {
	c, err := b.take(ctx, Lock{r.Name, r.Owner}, r.TTL)
	if err != nil {
		return err
	}
	for got := false; err == nil && !got; {
		err = c.do(ctx, waitSlice+cleanupTime, func(own context.Context) (err error) {
			got, err = c.WaitLock(own, c.lock, waitSlice)
			return err
		})
	}
	if err == nil {
		err = c.enter(nil)
	}
	if err != nil {
		c.giveUp(0) // the server may still be about to grant the lock
	}
	return err
}
