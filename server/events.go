package server

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"
)

const (
	// pingTime is how often a stream without events gets a comment, so that proxies keep it and a client
	// that has gone is noticed.
	pingTime = 15 * time.Second

	// writeTime is how long a client may take to read an event. A slower one loses its stream.
	writeTime = 10 * time.Second
)

// events writes server-sent events.
type events struct {
	c       *exchange
	control *http.ResponseController
}

// events begins the answer to a request as a stream of events.
func (c *exchange) events() *events {
	h := c.w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("X-Accel-Buffering", "no") // nginx would keep events back
	return &events{c, http.NewResponseController(c.w)}
}

// send writes an event. A nil v has no data.
func (e *events) send(event string, v any) error {
	data := []byte("{}")
	if v != nil {
		var err error
		if data, err = json.Marshal(v); err != nil {
			return err
		}
	}
	return e.write("event: %s\ndata: %s\n\n", event, data)
}

func (e *events) ping() error { return e.write(": ping\n\n") }

func (e *events) write(format string, args ...any) error {
	_ = e.control.SetWriteDeadline(time.Now().Add(writeTime)) // not supported in tests
	if _, err := fmt.Fprintf(e.c.w, format, args...); err != nil {
		return err
	}
	return e.control.Flush()
}

// forward sends the first event, and calls send at each signal. It returns nil when ctx ends, and an error when
// the caller's token is not valid any more.
func (e *events) forward(ctx context.Context, first string, signal <-chan struct{}, send func() error) error {
	if err := e.send(first, nil); err != nil {
		return err
	}
	t := time.NewTicker(pingTime)
	defer t.Stop()
	for {
		next := send
		select {
		case <-signal:
		case <-t.C:
			next = e.ping
		case <-ctx.Done():
			return nil
		}
		if err := e.c.enter(); err != nil {
			return err
		}
		if err := next(); err != nil {
			return err
		}
	}
}
