// Package zk is a ZooKeeper client for locks: a session that is never silently replaced by another,
// a context on every call, several requests in one round trip, watches that can be cancelled, and a
// deadline until which the session certainly lives.
package zk

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/distlock/distlock/internal/wait"
)

// Conn is one session. It moves to another server when its connection breaks, and is never replaced
// by another session. All methods may be called concurrently; the requests of one goroutine are
// executed in their order.
type Conn struct {
	cfg        Config
	identity   identity
	nextServer int           // index in cfg.Servers
	toWrite    wait.Signal   // the queue has grown
	done       chan struct{} // the session is over
	stopped    chan struct{} // its goroutines have ended

	ctx    context.Context // ends with the session
	cancel context.CancelFunc

	// Used by the goroutine of run only:
	useful    bool     // the connection has answered a request
	resumable net.Conn // through which the session is to be closed at the servers, as it has ended here

	mu           sync.Mutex
	logins       logins
	broken       error // why there is no connection; nil: there is one, or there was no try yet
	err          error // why the session is over
	closing      bool
	queue        []*rpc // not written yet
	inFlight     []*rpc // written and unanswered, in the order of their answers
	watches      watchTable
	proof        proof
	lastAgreed   time.Time // when a write was sent that succeeded
	lastReceived time.Time // when the server last sent something
	zxid         int64     // the last transaction that a server reported
	xid          int32
}

// identity proves to a server that a session is ours.
type identity struct {
	id       int64
	password []byte
}

func newConn(cfg Config) *Conn {
	c := &Conn{cfg: cfg, toWrite: wait.NewSignal(), done: make(chan struct{}), stopped: make(chan struct{})}
	c.watches = watchTable{mu: &c.mu, entries: map[watchKey]*watchEntry{}, remove: c.removeWatch}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	return c
}

// Session returns the session's number, as in Stat.EphemeralOwner.
func (c *Conn) Session() int64 { return c.identity.id }

// Timeout returns the session timeout that the servers have granted.
func (c *Conn) Timeout() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.proof.timeout
}

// Deadline returns the time until which the servers certainly don't end the session by themselves,
// whatever has happened since. It advances while the session is healthy: just after that, between a
// half and three quarters of the timeout are left if the servers answer within a twenty-fifth of
// it. A deadline that has passed proves nothing: only Done reports the session's end.
func (c *Conn) Deadline() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.proof.until
}

// Done is closed when the session is over: the servers said so, or Close was called.
func (c *Conn) Done() <-chan struct{} { return c.done }

// end ends the session. Only the first reason counts.
func (c *Conn) end(why error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return
	}
	c.err = why
	close(c.done)
	c.cancel()
}

// rpc is a request and its answer.
type rpc struct {
	opcode     opcode
	path       string // as the caller knows it, for errors
	frame      []byte // the request; its length and xid are set when it is written
	xid        int32  // 0: the connection's next
	idempotent bool   // it may be sent again
	internal   bool   // it serves one connection and ends with that; no caller waits for it

	stage   stage
	sentAt  time.Time
	resends int

	watch  *Watch // that it sets
	done   chan struct{}
	err    error
	answer rpcAnswer
}

// stage is the progress of an rpc. Conn.mu guards it.
type stage int

const (
	queued    stage = iota // not written yet
	sent                   // written, at least in part
	answered               // its result is set, and done has been notified
	abandoned              // the caller has gone
)

// rpcAnswer holds the results of a request, as far as its opcode has them.
type rpcAnswer struct {
	created  string
	data     []byte
	children []string
	stat     Stat
	results  []multiResult
}

const (
	frameHead  = 12 // length, xid, opcode
	maxResends = 3
)

var rpcs = sync.Pool{New: func() any { return &rpc{done: make(chan struct{}, 1)} }}

// newRPC returns a request to which only the head is written.
func newRPC(o opcode, path string) *rpc {
	q := rpcs.Get().(*rpc)
	*q = rpc{opcode: o, path: path, frame: append(q.frame[:0], make([]byte, frameHead)...), done: q.done}
	binary.BigEndian.PutUint32(q.frame[8:], uint32(o))
	return q
}

// free recycles an rpc to which no other reference exists.
func (r *rpc) free() {
	*r = rpc{frame: r.frame, done: r.done}
	rpcs.Put(r)
}

func (r *rpc) error(err error) error { return &opError{r.opcode, r.path, err} }

// assignXID completes the frame when it is written.
func (r *rpc) assignXID(xid int32) {
	binary.BigEndian.PutUint32(r.frame, uint32(len(r.frame)-4))
	binary.BigEndian.PutUint32(r.frame[4:], uint32(xid))
	r.xid = xid
}

// commits reports whether an answer without an error proves that a majority of the servers has
// agreed.
func (r *rpc) commits() bool {
	switch r.opcode {
	case opCreate2, opCreateContainer, opDelete, opSetData, opMulti:
		return true
	}
	return false
}

// decode reads an answer without an error.
func (r *rpc) decode(d *decoder) error {
	a := &r.answer
	switch r.opcode {
	case opCreate2, opCreateContainer:
		a.created, a.stat = d.text(), d.stat()
	case opGetData:
		a.data, a.stat = d.buffer(), d.stat()
	case opSetData:
		a.stat = d.stat()
	case opGetChildren2:
		a.children, a.stat = d.texts(), d.stat()
	case opMulti:
		a.results = d.multiResults()
	}
	if d.bad {
		return errProtocol
	}
	return nil
}

// do sends a request and waits for its answer. It frees the rpc.
func (c *Conn) do(ctx context.Context, q *rpc) (rpcAnswer, error) {
	if err := c.submit(ctx, q); err != nil {
		return rpcAnswer{}, err
	}
	return c.await(ctx, q)
}

// submit queues requests to be written one right after the other. On an error it queues none, and
// frees them.
func (c *Conn) submit(ctx context.Context, qs ...*rpc) error {
	for _, q := range qs {
		if err := c.validate(ctx, q); err != nil {
			return reject(qs, q, err)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.closedError(qs[0]); err != nil {
		return reject(qs, qs[0], err)
	}
	for _, q := range qs {
		c.queue = append(c.queue, q)
		c.watches.requested(q.watch)
	}
	c.toWrite.Notify()
	return nil
}

func (c *Conn) validate(ctx context.Context, q *rpc) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if len(q.frame)-4 > c.cfg.MaxRequest {
		return ErrTooLarge
	}
	if q.path != "" {
		return checkPath(q.path)
	}
	return nil
}

// closedError returns why the session takes no requests any more.
func (c *Conn) closedError(q *rpc) error {
	if c.err == nil && c.closing && q.opcode != opCloseSession {
		return ErrClosed
	}
	return c.err
}

func reject(qs []*rpc, bad *rpc, why error) error {
	err := bad.error(fmt.Errorf("%w: %w", ErrNotSent, why))
	for _, q := range qs {
		q.free()
	}
	return err
}

// await returns when the request is answered or ctx ends. It frees the rpc.
func (c *Conn) await(ctx context.Context, q *rpc) (rpcAnswer, error) {
	select {
	case <-q.done:
	case <-ctx.Done():
		if err := c.abandon(q, ctx.Err()); err != nil {
			return rpcAnswer{}, err
		}
		<-q.done
	}
	defer q.free()
	if q.err != nil {
		return rpcAnswer{}, q.error(q.err)
	}
	return q.answer, nil
}

// abandon gives up a request, unless it has been answered: then it returns nil.
func (c *Conn) abandon(q *rpc, why error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch q.stage {
	case queued:
		if i := slices.Index(c.queue, q); i >= 0 {
			c.queue = slices.Delete(c.queue, i, i+1)
		}
		if c.broken != nil {
			why = fmt.Errorf("%w, without a connection: %v", why, c.broken)
		}
		if q.resends == 0 {
			why = fmt.Errorf("%w: %w", ErrNotSent, why)
		}
		err := q.error(why)
		q.stage = abandoned
		c.finish(q, why)
		return err
	case sent:
		q.stage = abandoned
		return q.error(why)
	}
	return nil
}

// finish reports a result to the caller of a request, if there is one. c.mu is held.
func (c *Conn) finish(q *rpc, err error) {
	if err != nil && q.stage == queued && q.resends == 0 {
		err = fmt.Errorf("%w: %w", ErrNotSent, err)
	}
	if q.internal || q.stage == abandoned {
		c.watches.answered(q.watch, err == nil, false)
		q.free()
		return
	}
	c.watches.answered(q.watch, err == nil, err == nil)
	q.err, q.stage = err, answered
	q.done <- struct{}{}
}

// removeWatch queues the removal of a server's watch. c.mu is held.
func (c *Conn) removeWatch(at watchKey) {
	if c.err != nil {
		return
	}
	q := newRPC(opRemoveWatches, "")
	q.internal = true
	q.frame = appendInt(appendText(q.frame, at.path), int32(at.kind))
	c.queue = append(c.queue, q)
	c.toWrite.Notify()
}
