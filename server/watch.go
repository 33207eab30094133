package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/httpwire"
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
	w       http.ResponseWriter
	control *http.ResponseController
}

// events begins the answer to a request as a stream of events.
func (c *call) events() *events {
	h := c.w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no") // nginx would keep events back
	return &events{c.w, http.NewResponseController(c.w)}
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
	if _, err := fmt.Fprintf(e.w, format, args...); err != nil {
		return err
	}
	return e.control.Flush()
}

// watch signals when an attempt may succeed. The stream ends with the request, or when the server drains.
func (c *call) watch() error {
	var m httpwire.Request
	if err := c.decode(&m, httpwire.MaxBody); err != nil {
		return err
	}
	h, err := c.hold(m.Hold)
	if err != nil {
		return err
	}
	if err := c.may(Lock, h.Name); err != nil {
		return err
	}
	if err := c.checkTTL(h.TTL); err != nil {
		return err
	}
	w, ok := c.s.backend.(driver.Watcher)
	if !ok {
		return errNoWatch
	}
	ctx, end, err := c.stream()
	if err != nil {
		return err
	}
	defer end()
	arming, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	armed, err := w.Watch(arming, m.Driver())
	if errors.Is(err, driver.ErrSkip) {
		return errNoWatch
	}
	if err != nil {
		return err
	}
	defer armed.Close()
	e := c.events()
	return e.forward(ctx, httpwire.EventArmed, armed.Ready, func() error { return e.send(httpwire.EventReady, nil) })
}

var errNoWatch = fmt.Errorf("%w: the backend has no signals for this lock: poll", driver.ErrUnsupported)

// forward sends the first event, and calls send at each signal. It returns nil when ctx ends.
func (e *events) forward(ctx context.Context, first string, signal <-chan struct{}, send func() error) error {
	if err := e.send(first, nil); err != nil {
		return err
	}
	t := time.NewTicker(pingTime)
	defer t.Stop()
	for {
		var err error
		select {
		case <-signal:
			err = send()
		case <-t.C:
			err = e.ping()
		case <-ctx.Done():
			return nil
		}
		if err != nil {
			return err
		}
	}
}
