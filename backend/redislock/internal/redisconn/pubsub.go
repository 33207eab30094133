package redisconn

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// PubSubMode says which commands publish and subscribe.
type PubSubMode uint32

// The modes.
const (
	PubSubUnknown PubSubMode = iota // until a server has been queried
	PubSubClassic                   // PUBLISH and SUBSCRIBE
	PubSubSharded                   // SPUBLISH and SSUBSCRIBE, which only a cluster has
)

// pubSubUnasked is PubSubClassic for the moment: the server did not let its user ask.
const pubSubUnasked = PubSubSharded + 1

// askAgain is how long that is so.
const askAgain = 10 * time.Second

// PubSub holds the mode of one Client. It never changes once a server has said it: messages must go on to be
// heard.
type PubSub struct {
	mode  atomic.Uint32
	asked atomic.Int64 // when pubSubUnasked was last noted, since began
	began time.Time
}

// NewPubSub returns a PubSub of this mode.
func NewPubSub(mode PubSubMode) *PubSub {
	p := &PubSub{began: time.Now()}
	p.mode.Store(uint32(mode))
	return p
}

// Mode returns the mode that is known.
func (p *PubSub) Mode() PubSubMode {
	if mode := PubSubMode(p.mode.Load()); mode != pubSubUnasked {
		return mode
	}
	return PubSubClassic
}

// Detect returns the mode. It queries a server if the mode is unknown, or was not answered a while ago.
func (p *PubSub) Detect(ctx context.Context, c *Client) (PubSubMode, error) {
	switch mode := PubSubMode(p.mode.Load()); mode {
	case PubSubUnknown:
		return p.query(ctx, c)
	case pubSubUnasked:
		asked, now := p.asked.Load(), int64(time.Since(p.began))
		if now-asked > int64(askAgain) && p.asked.CompareAndSwap(asked, now) {
			_, _ = p.query(ctx, c) // without an answer the mode is what it was
		}
		return p.Mode(), nil
	default:
		return mode, nil
	}
}

// query asks a server for the mode. Only one that knows the question, or says that it does not, decides for good: one
// that is busy or refuses the user may answer otherwise in a moment. The query changes nothing, so it is
// repeated once: a connection that died unnoticed must not make the outcome unknown of the command that follows.
func (p *PubSub) query(ctx context.Context, c *Client) (PubSubMode, error) {
	was := p.mode.Load()
	ask := func() (*ReplyError, error) {
		reply, err := c.Do(ctx, "", []string{"PUBSUB", "SHARDNUMSUB", "0"})
		if _, is := reply.([]any); !is && err == nil {
			err = ErrUnexpected
		}
		re, _ := AsReply(err)
		return re, err
	}
	re, err := ask()
	if err != nil && re == nil && ctx.Err() == nil {
		re, err = ask()
	}
	mode := PubSubSharded
	switch {
	case err == nil:
	case re == nil, Unexecuted(re) && !re.HasCode("NOPERM"):
		return PubSubUnknown, fmt.Errorf("asking whether messages are sharded: %w", err)
	case re.UnknownCommand():
		mode = PubSubClassic
	default:
		p.asked.Store(int64(time.Since(p.began)))
		mode = pubSubUnasked
	}
	p.mode.CompareAndSwap(was, uint32(mode))
	return p.Mode(), nil
}

// Publish returns the command that publishes a message.
func (p *PubSub) Publish(channel, message string) []string {
	if p.Mode() == PubSubSharded {
		return []string{"SPUBLISH", channel, message}
	}
	return []string{"PUBLISH", channel, message}
}

// Event is reported by a Listener.
type Event struct {
	Kind             EventKind
	Channel, Message string
	Sharded          bool
	Err              error
}

// EventKind says what has happened.
type EventKind uint8

// The kinds of events.
const (
	Subscribed   EventKind = iota + 1 // the server has confirmed a subscription
	Received                          // a message
	Unsubscribed                      // a subscription has ended, requested or not
	Broken                            // the connection has ended, by Err
)

// healthCheck is how long a subscription may be silent before a PING.
const healthCheck = 5 * time.Second

// Listen opens a connection for subscriptions. It calls on with one event after the other; there are no more after Close or a
// failure. Only the end of ctx ends the wait for a connection.
func (s *Server) Listen(ctx context.Context, on func(Event)) (*Listener, error) {
	w, err := s.connect(ctx)
	if err != nil {
		return nil, err
	}
	l := &Listener{wire: w, timeout: s.o.timeout(), done: make(chan struct{})}
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

// Listener is a connection for subscriptions. The effect of a call is reported by an event. All
// sharded channels of a call must lie in one slot.
type Listener struct {
	*wire
	timeout time.Duration
	done    chan struct{}

	mu sync.Mutex // for writing
}

// Subscribe adds subscriptions.
func (l *Listener) Subscribe(sharded bool, channels []string) error {
	return l.send("SUBSCRIBE", sharded, channels)
}

// Unsubscribe ends subscriptions.
func (l *Listener) Unsubscribe(sharded bool, channels []string) error {
	return l.send("UNSUBSCRIBE", sharded, channels)
}

func (l *Listener) send(command string, sharded bool, channels []string) error {
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
func (l *Listener) Close() {
	l.wire.Close()
	<-l.done
}

// receive reports events until the connection ends or does not answer a PING.
func (l *Listener) receive(on func(Event)) error {
	for asked := false; ; {
		l.SetReadDeadline(time.Now().Add(healthCheck))
		a, err := l.in.answer()
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
