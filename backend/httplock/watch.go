package httplock

import (
	"context"
	"errors"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/httpwire"
	"github.com/distlock/distlock/internal/wait"
)

// Watch opens a stream, which is armed when it returns. If no server takes it now, it is opened later, and signals once it is
// armed. It returns ErrSkip if the server's backend has no Watch for r.
func (b *Backend) Watch(ctx context.Context, r driver.Request) (driver.Watch, error) {
	if err := b.checkRequest(r); err != nil {
		return driver.Watch{}, err
	}
	r.OnRevoke = nil
	q := post("/v1/watch", httpwire.FromRequest(r))
	w := &watch{b: b, q: q, ready: wait.NewSignal()}
	var end context.CancelFunc
	w.life, end = context.WithCancel(b.life)
	s, err := w.open(ctx)
	if errors.Is(err, driver.ErrUnsent) && ctx.Err() == nil { // without a watch the core would poll, and ask for one each time
		s, err = brokenStream(), nil
	}
	if err == nil && !b.goTask(func() { w.run(s) }) {
		s.close()
		err = driver.ErrClosed
	}
	if err == nil {
		return driver.Watch{Ready: w.ready, Close: end}, nil
	}
	end()
	if errors.Is(err, driver.ErrUnsupported) {
		return driver.Watch{}, driver.ErrSkip
	}
	return driver.Watch{}, fail("watch", r.Name, err)
}

// watch is one armed wait.
type watch struct {
	b     *Backend
	q     request
	ready wait.Signal
	life  context.Context
}

func (w *watch) open(ctx context.Context) (*stream, error) {
	c := w.b.client
	return c.openStream(ctx, w.life, httpwire.EventArmed, func(ctx context.Context) (*answer, error) {
		return c.do(ctx, w.q)
	})
}

// run signals until the watch is closed. A stream that breaks is opened again, and a signal follows: the
// broken one may have missed something. If that takes a while a signal comes before: the answer to the next attempt says that there is
// no stream, so that the core makes attempts of its own.
func (w *watch) run(s *stream) {
	for s != nil {
		w.forward(s)
		s = w.reopen(s.from != nil)
		if s != nil {
			w.ready.Notify()
		}
	}
}

// forward signals until the stream breaks.
func (w *watch) forward(s *stream) {
	defer s.close()
	for {
		e, err := s.next()
		if err != nil {
			return
		}
		if e.name == httpwire.EventReady {
			w.ready.Notify()
		}
	}
}

// reopen returns a new stream, or nil once the watch is closed.
func (w *watch) reopen(broke bool) *stream {
	for try := 0; wait.Sleep(w.life, wait.Jitter(wait.Backoff(try, reopenPause, maxReopenPause))) == nil; try++ {
		ctx, cancel := context.WithTimeout(w.life, maxReopenPause)
		s, err := w.open(ctx)
		cancel()
		if err == nil {
			return s
		}
		if broke && try == 0 {
			w.ready.Notify()
		}
	}
	return nil
}
