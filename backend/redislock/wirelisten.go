package redislock

import (
	"context"
	"sync"
	"time"
)

// healthCheck is how long a silent subscription is trusted; after twice that it counts
// as broken.
const healthCheck = 5 * time.Second

func (w *wire) listen(ctx context.Context, on func(event)) (listener, error) {
	c, err := w.target.dial(ctx)
	if err != nil {
		return nil, err
	}
	l := &wireListener{conn: c, timeout: w.target.timeout, done: make(chan struct{})}
	go func() {
		defer close(l.done)
		on(event{kind: broken, err: l.receive(on)})
	}()
	return l, nil
}

// wireListener is a connection that has subscriptions.
type wireListener struct {
	conn    *conn
	timeout time.Duration
	mu      sync.Mutex // one writer at a time
	done    chan struct{}
}

func (l *wireListener) subscribe(_ context.Context, channels []string) error {
	return l.send(append([]string{"SUBSCRIBE"}, channels...))
}

func (l *wireListener) unsubscribe(_ context.Context, channels []string) error {
	return l.send(append([]string{"UNSUBSCRIBE"}, channels...))
}

func (l *wireListener) send(args []string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conn.SetWriteDeadline(time.Now().Add(l.timeout))
	return l.conn.send(args)
}

func (l *wireListener) close() {
	l.conn.Close()
	<-l.done
}

// receive reports what comes, until the connection ends.
func (l *wireListener) receive(on func(event)) error {
	for asked := false; ; {
		l.conn.SetReadDeadline(time.Now().Add(healthCheck))
		if _, err := l.conn.r.Peek(1); timedOut(err) && !asked {
			asked = true
			if err := l.send([]string{"PING"}); err != nil {
				return err
			}
			continue
		}
		asked = false
		reply, err := readReply(l.conn.r)
		if err != nil {
			return err
		}
		if re, ok := reply.(*replyError); ok {
			return re
		}
		if list, ok := reply.([]any); ok && len(list) == 3 {
			report(list, on)
		}
	}
}

func report(list []any, on func(event)) {
	switch text(list[0]) {
	case "subscribe":
		on(event{kind: confirmed, channel: text(list[1])})
	case "message":
		on(event{kind: received, channel: text(list[1]), message: text(list[2])})
	}
}
