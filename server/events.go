package server

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"net"
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
	c       *exchange
	control *http.ResponseController
	conn    net.Conn // nil: the events are the answer of a handler that runs
	step    eventStep
}

// events begins the answer to a request as a stream of events.
func (ex *exchange) events() *events {
	h := ex.w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("X-Accel-Buffering", "no") // nginx would keep events back
	return &events{c: ex, control: http.NewResponseController(ex.w)}
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
	return e.sendText(event, data)
}

// sendText writes an event whose data is a line of text.
func (e *events) sendText(event string, data []byte) error {
	return e.write([]byte("event: "+event+"\ndata: "), data, []byte("\n\n"))
}

func (e *events) ping() error { return e.write([]byte(": ping\n\n")) }

// write writes the parts of an event as they are: a copy for each of a thousand pages would be most of their memory.
func (e *events) write(parts ...[]byte) error {
	until := time.Now().Add(writeTime)
	if e.conn != nil {
		_ = e.conn.SetWriteDeadline(until)
		all := net.Buffers(parts)
		_, err := all.WriteTo(e.conn)
		return err
	}
	_ = e.control.SetWriteDeadline(until) // not supported in tests
	for _, part := range parts {
		if _, err := e.c.w.Write(part); err != nil {
			return err
		}
	}
	return e.control.Flush()
}

// forward sends the first event, and calls send at each signal. It returns nil when ctx ends, and an error when
// the caller's token is not valid any more.
func (e *events) forward(ctx context.Context, first string, signal <-chan struct{}, send func() error) error {
	if err := e.take(func() error { return e.send(first, nil) }); err != nil {
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
		if err := e.take(func() error {
			if err := e.c.identify(); err != nil {
				return err
			}
			return next()
		}); err != nil {
			return err
		}
	}
}

// subscribe adds the callbacks by which r's client gets the events of its hold, if the request has a ClientHeader.
func (ex *exchange) subscribe(r *driver.Request, revocable bool) error {
	client := ex.r.Header.Get(httpwire.ClientHeader)
	if client == "" {
		if revocable {
			return invalid("revocable needs the header %s, and a client that reads /v1/news with it", httpwire.ClientHeader)
		}
		return nil
	}
	if !isSecret(client) {
		return errSecret
	}
	subs, h, key := &ex.s.subscribers, r.Hold, clientKey{ex.who.Name, client}
	r.OnLost = func() {
		subs.post(key, httpwire.EventLost, h)
		ex.s.seen.Lost(h)
	}
	if revocable {
		if !ex.s.caps.Revocable.Has(r.Mode) {
			return problem(http.StatusNotImplemented, httpwire.Unsupported, "the backend can't ask the holder of a lock of mode %v", r.Mode)
		}
		r.OnRevoke = func() { subs.post(key, httpwire.EventAsked, h) }
	}
	return nil
}

var errSecret = invalid("%s is not a secret: want at least %d random bytes in hex", httpwire.ClientHeader, httpwire.SecretBytes)

func isSecret(s string) bool {
	b, err := hex.DecodeString(s)
	return err == nil && len(b) >= httpwire.SecretBytes && len(b) <= 64
}

// news sends a client the news of its holds.
func (ex *exchange) news() error {
	if err := ex.noBody(); err != nil {
		return err
	}
	client := ex.r.Header.Get(httpwire.ClientHeader)
	if !isSecret(client) {
		return errSecret
	}
	ctx, end, err := ex.stream()
	if err != nil {
		return err
	}
	defer end()
	m := ex.s.subscribers.enter(clientKey{ex.who.Name, client})
	defer ex.s.subscribers.leave(m)
	e := ex.events()
	return e.forward(ctx, httpwire.EventHello, m.added, func() error {
		pending := ex.s.subscribers.take(m)
		for i, p := range pending {
			if err := e.send(p.event, p.news); err != nil {
				ex.s.subscribers.putBack(m, pending[i:])
				return err
			}
		}
		return nil
	})
}

// eventStep is a step of a stream, which is taken by a kept goroutine.
type eventStep struct {
	e     *events
	next  func() error
	taken chan error // nil: the goroutine of the stream takes it
}

// take takes a step.
func (e *events) take(next func() error) error {
	if e.step.taken == nil {
		return next()
	}
	e.step.e, e.step.next = e, next
	e.c.s.workers.run(&e.step)
	return <-e.step.taken
}

func (t *eventStep) run() {
	err := error(problem(http.StatusInternalServerError, httpwire.Unknown, "a bug in distlock"))
	defer func() { t.taken <- err }()
	defer t.e.c.recovered()
	err = t.next()
}

// recovered logs a panic, as net/http does for a handler.
func (ex *exchange) recovered() {
	if v := recover(); v != nil {
		ex.logPanic(ex.r.Pattern, v)
	}
}
