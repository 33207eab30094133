package httplock

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/distlock/distlock/internal/bounded"
)

// A broken stream is opened again after pauses from reopenPause to maxReopenPause.
const (
	reopenPause    = 50 * time.Millisecond
	maxReopenPause = 5 * time.Second
)

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

// brokenStream returns a stream that has no events.
func brokenStream() *stream {
	return &stream{lines: bufio.NewScanner(strings.NewReader("")), close: func() {}}
}

// sendFunc sends the request for a stream.
type sendFunc func(ctx context.Context) (*answer, error)

// openStream calls send, and returns once the first event has come, which must be the given one. ctx bounds
// only that; the stream ends with life.
func (c *client) openStream(ctx, life context.Context, first string, send sendFunc) (*stream, error) {
	life, cancel := context.WithCancelCause(life)
	stop := context.AfterFunc(ctx, func() {
		why := context.Canceled
		if bounded.Limited(ctx) {
			why = context.DeadlineExceeded
		}
		cancel(why)
	})
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
