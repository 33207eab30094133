package httplock

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/httpwire"
	"github.com/distlock/distlock/internal/wait"
)

// A broken stream is opened again after pauses from reopenPause to maxReopenPause.
const (
	reopenPause    = 50 * time.Millisecond
	maxReopenPause = 5 * time.Second
)

// Watch opens a stream, which is armed when it returns. It returns ErrSkip if the server's backend has no
// Watch for r.
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
// broken one may have missed something. Until then the core makes attempts of its own.
func (w *watch) run(s *stream) {
	for s != nil {
		w.forward(s)
		s = w.reopen()
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
func (w *watch) reopen() *stream {
	for try := 0; wait.Sleep(w.life, wait.Jitter(wait.Backoff(try, reopenPause, maxReopenPause))) == nil; try++ {
		ctx, cancel := context.WithTimeout(w.life, maxReopenPause)
		s, err := w.open(ctx)
		cancel()
		if err == nil {
			return s
		}
	}
	return nil
}

const (
	// quietTime is when a stream without events and pings counts as broken. A server pings every 15 s.
	quietTime = 45 * time.Second

	maxEventLine = 64 << 10 // bytes
)

// stream is an open stream of server-sent events. It has one reader.
type stream struct {
	from  *endpoint
	lines *bufio.Scanner
	alive func() // called for each line
	close func()
}

// streamEvent is a server-sent event.
type streamEvent struct {
	name string
	data string
}

var (
	errQuiet = errors.New("the stream of events is silent")
	errFirst = errors.New("the stream of events does not begin as it must")
)

// sendFunc sends the request for a stream.
type sendFunc func(ctx context.Context) (*answer, error)

// openStream calls send, and returns once the first event has come, which must be the given one. ctx bounds
// only that; the stream ends with life.
func (c *client) openStream(ctx, life context.Context, first string, send sendFunc) (*stream, error) {
	life, cancel := context.WithCancelCause(life)
	stop := context.AfterFunc(ctx, func() { cancel(ctx.Err()) })
	a, err := send(life)
	if err != nil {
		stop()
		cancel(nil)
		return nil, err
	}
	s := &stream{from: a.from, lines: bufio.NewScanner(a.Body), alive: func() {}}
	s.lines.Buffer(nil, maxEventLine)
	s.close = func() {
		stop()
		cancel(nil)
		a.Body.Close()
	}
	e, err := s.next()
	if err == nil && e.name != first {
		err = errFirst
	}
	if err == nil && !stop() {
		err = ctx.Err()
	}
	if err != nil {
		c.leave(life, a.from)
		s.close()
		return nil, tried{{a.from, err}}
	}
	s.bound(c.quiet, cancel)
	return s, nil
}

// bound lets the stream end when it has been quiet for so long.
func (s *stream) bound(quiet time.Duration, cancel context.CancelCauseFunc) {
	t := time.AfterFunc(quiet, func() { cancel(errQuiet) })
	s.alive = func() { t.Reset(quiet) }
	end := s.close
	s.close = func() {
		t.Stop()
		end()
	}
}

// next returns the next event. Comments keep the stream alive and are no events.
func (s *stream) next() (streamEvent, error) {
	e, some := streamEvent{}, false
	for s.lines.Scan() {
		s.alive()
		line := s.lines.Text()
		if line == "" && some {
			return e, nil
		}
		field, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch field {
		case "event":
			e.name, some = value, true
		case "data":
			e.data, some = e.data+value, true
		}
	}
	err := s.lines.Err()
	if err == nil {
		err = io.ErrUnexpectedEOF
	}
	return streamEvent{}, fmt.Errorf("the stream of events broke off: %w", err)
}
