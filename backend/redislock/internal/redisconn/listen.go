package redisconn

import (
	"cmp"
	"context"
	"errors"
	"os"
	"sync"
	"time"
)

// healthCheck is how long a subscription may be silent before a PING.
const healthCheck = 5 * time.Second

// Listen begins to report messages. Only the end of ctx ends the wait for a connection.
func (s *server) Listen(ctx context.Context, on func(Event)) (Listener, error) {
	w, err := s.connect(ctx)
	if err != nil {
		return nil, err
	}
	l := &listener{wire: w, timeout: s.o.timeout(), done: make(chan struct{})}
	// A user who may not is told now, and not once all is quiet.
	if err := l.send("PING", false, nil); err != nil {
		w.Close()
		return nil, err
	}
	go func() {
		defer close(l.done)
		on(Event{Kind: Broken, Err: l.receive(on)})
	}()
	return l, nil
}

type listener struct {
	*wire
	timeout time.Duration
	done    chan struct{}

	mu sync.Mutex // for writing
}

func (l *listener) Subscribe(_ context.Context, sharded bool, channels []string) error {
	return l.send("SUBSCRIBE", sharded, channels)
}

func (l *listener) Unsubscribe(_ context.Context, sharded bool, channels []string) error {
	return l.send("UNSUBSCRIBE", sharded, channels)
}

func (l *listener) send(command string, sharded bool, channels []string) error {
	if sharded {
		command = "S" + command
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.SetWriteDeadline(time.Now().Add(l.timeout))
	_, err := l.Write(appendCommand(nil, append([]string{command}, channels...)))
	return err
}

// Close ends the connection. No event is reported after that.
func (l *listener) Close() {
	l.wire.Close()
	<-l.done
}

// receive reports events until the connection ends or does not answer a PING.
func (l *listener) receive(on func(Event)) error {
	for asked := false; ; {
		l.SetReadDeadline(time.Now().Add(healthCheck))
		a, err := l.answer()
		if errors.Is(err, os.ErrDeadlineExceeded) && !asked {
			asked, err = true, l.send("PING", false, nil)
			if err == nil {
				continue
			}
		}
		if err = cmp.Or(err, a.Err); err != nil {
			return err
		}
		asked = false
		report(a.Reply, on)
	}
}

// report reports the event of a reply: of three words, but for the answers to PING.
func report(reply any, on func(Event)) {
	if words, _ := reply.([]any); len(words) == 3 {
		e := pushes[Text(words[0])]
		e.Channel, e.Message = Text(words[1]), Text(words[2])
		on(e)
	}
}

// pushes are the events of a server's pushes. Others are of no interest, and have no kind.
var pushes = map[string]Event{
	"message": {Kind: Received}, "smessage": {Kind: Received}, "subscribe": {Kind: Subscribed}, "unsubscribe": {Kind: Unsubscribed},
	"ssubscribe": {Kind: Subscribed, Sharded: true}, "sunsubscribe": {Kind: Unsubscribed, Sharded: true},
}
