package redislock

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"time"
)

// wire is the client that Open makes. It is quicker than those that do more (see the
// benchmark), for two reasons. A goroutine that is alone sends and receives by itself:
// waking another one costs as much as asking Redis. And commands that come while others
// are on their way are sent together: when those have been answered, the first of the
// waiting goroutines does it for all of them.
//
// There is one connection, so commands are executed in the order in which they came. A
// caller whose context ends leaves the connection as it is: someone else reads the
// answer. So what is sent later is executed later, also after a stall of the server:
// a release finds the lock that an abandoned acquire took.
type wire struct {
	target *target

	mu     sync.Mutex
	queue  []*call // not sent, in order
	leader *call   // whose goroutine sends and receives; nil: nobody does
	conn   *conn   // the leader's; nil: to be made
	closed bool
}

// call is a command on its way.
type call struct {
	args  []string
	reply any
	err   error
	turn  chan turn // for one who waits
}

// turn is what a waiting caller is told.
type turn uint8

const (
	answered turn = iota // the answer is there
	lead                 // it is your turn to send what waits, yours first
)

// maxBatch bounds what is sent at once.
const maxBatch = 512

var errWireClosed = errors.New("redis: connection closed by Close")

func (w *wire) do(ctx context.Context, args []string) (any, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	c := &call{args: args}
	w.mu.Lock()
	if w.closed {
		w.mu.Unlock()
		return nil, errWireClosed
	}
	w.queue = append(w.queue, c)
	if w.leader != nil {
		c.turn = make(chan turn, 1)
		w.mu.Unlock()
		return w.follow(ctx, c)
	}
	w.leader = c
	w.mu.Unlock()
	return w.lead(ctx, c)
}

// follow waits for the answer, or for the turn.
func (w *wire) follow(ctx context.Context, c *call) (any, error) {
	select {
	case t := <-c.turn:
		if t == lead {
			// Those who were answered just now may want more: let them join.
			runtime.Gosched()
			return w.lead(ctx, c)
		}
		return c.result()
	case <-ctx.Done():
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	select {
	case t := <-c.turn:
		if t == answered {
			return c.result()
		}
		w.dequeue(c)
		w.passOn()
	default:
		w.dequeue(c)
	}
	return nil, ctx.Err()
}

// dequeue takes back a command that was not sent.
func (w *wire) dequeue(c *call) {
	if i := slices.Index(w.queue, c); i >= 0 {
		w.queue = slices.Delete(w.queue, i, i+1)
	}
}

func (c *call) result() (any, error) {
	if re, ok := c.reply.(*replyError); ok {
		return nil, re
	}
	return c.reply, c.err
}

func (c *call) finish(reply any, err error) {
	c.reply, c.err = reply, err
	if c.turn != nil {
		c.turn <- answered
	}
}

// lead sends what waits, own first, and reads the answers.
func (w *wire) lead(ctx context.Context, own *call) (any, error) {
	conn, err := w.connect(ctx)
	if err != nil {
		return nil, w.cannotConnect(ctx, own, err)
	}
	batch := w.take()
	own.turn = nil // nobody needs to be told
	unsent, rest := w.exchange(ctx, conn, conn.encode(batch), batch)
	if rest == nil {
		return own.result()
	}
	// The context has ended. Who comes later waits for this answer too.
	go w.exchange(context.Background(), conn, unsent, rest)
	if len(rest) < len(batch) {
		return own.result()
	}
	return nil, ctx.Err()
}

// exchange sends and receives, and passes the lead on. If ctx ends it returns what is
// not sent and the calls that are not answered, and keeps the lead.
func (w *wire) exchange(ctx context.Context, conn *conn, unsent []byte, batch []*call) ([]byte, []*call) {
	leader := batch[0]
	conn.SetDeadline(time.Now().Add(w.target.timeout))
	stop := context.AfterFunc(ctx, func() { w.interrupt(leader) })
	defer stop()
	if len(unsent) > 0 {
		n, err := conn.Write(unsent)
		if timedOut(err) && ctx.Err() != nil {
			return unsent[n:], batch
		}
		if err != nil {
			w.fail(batch, err)
			return nil, nil
		}
	}
	return nil, w.receive(ctx, conn, batch)
}

// cannotConnect fails all who wait, unless it is only the leader's context that ended.
func (w *wire) cannotConnect(ctx context.Context, own *call, err error) error {
	if ctx.Err() == nil {
		w.fail(w.take(), err)
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.dequeue(own)
	w.passOn()
	return ctx.Err()
}

// connect is the leader's: the connection, made anew if need be.
func (w *wire) connect(ctx context.Context) (*conn, error) {
	w.mu.Lock()
	old := w.conn
	w.mu.Unlock()
	if old != nil && old.alive() {
		return old, nil
	}
	w.drop()
	c, err := w.target.dial(ctx)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		c.Close()
		return nil, errWireClosed
	}
	w.conn = c
	return c, nil
}

// drop closes the connection.
func (w *wire) drop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.conn != nil {
		w.conn.Close()
		w.conn = nil
	}
}

// take is the leader's: what is to be sent, its own first.
func (w *wire) take() []*call {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := min(len(w.queue), maxBatch)
	batch := w.queue[:n:n]
	if w.queue = w.queue[n:]; len(w.queue) == 0 {
		w.queue = nil
	}
	return batch
}

// receive reads the answers and passes the lead on; or it is interrupted between two
// answers and returns the calls that have none yet: the lead is still to be passed on.
func (w *wire) receive(ctx context.Context, conn *conn, batch []*call) (rest []*call) {
	for i, c := range batch {
		if _, err := conn.r.Peek(1); timedOut(err) && ctx.Err() != nil {
			return batch[i:]
		}
		reply, err := readReply(conn.r)
		if err != nil {
			w.fail(batch[i:], err)
			return nil
		}
		c.finish(reply, nil)
	}
	conn.used = time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.passOn()
	return nil
}

// fail ends calls whose connection ended: nobody knows what became of them.
func (w *wire) fail(batch []*call, err error) {
	w.drop()
	for _, c := range batch {
		c.finish(nil, err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.passOn()
}

// passOn makes the first of those who wait the leader. The mutex is held.
func (w *wire) passOn() {
	w.leader = nil
	if len(w.queue) > 0 {
		w.leader = w.queue[0]
		w.leader.turn <- lead
	}
}

// interrupt makes a leader whose context has ended stop reading.
func (w *wire) interrupt(leader *call) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.leader == leader && w.conn != nil {
		w.conn.SetDeadline(past)
	}
}

func (w *wire) name() string { return w.target.name() }

// close fails what is on its way.
func (w *wire) close() {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	w.drop()
}
