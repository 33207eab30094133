package zk

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Conn is one session, which is never replaced by another: when it is over, it is over.
// It moves to another server when the connection breaks. All methods may be called by
// any number of goroutines at once; what one goroutine asks is done in that order.
type Conn struct {
	cfg     Config
	who     identity
	next    int           // which server is tried next
	kick    chan struct{} // there is something to write
	done    chan struct{} // the session is over
	stopped chan struct{} // its goroutines have ended

	// ctx ends when the session does: with that attempts to connect.
	ctx    context.Context
	cancel context.CancelFunc

	mu      sync.Mutex
	err     error // why the session is over
	closing bool
	queue   []*call // not written yet
	flying  fifo    // written, in the order of their answers
	watches map[spot]*watching
	proof   proof
	heard   time.Time // when the server sent something last
	zxid    int64     // the last transaction that it told of
	xid     int32
}

// Dial opens a session. It asks each server once, and returns when one has made the
// session, knows the user, and finds the chroot, or gives up after ten
// seconds. The session lasts beyond ctx: until
// Close.
func Dial(ctx context.Context, cfg Config) (*Conn, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	c := &Conn{
		cfg: cfg, watches: map[spot]*watching{},
		kick: make(chan struct{}, 1), done: make(chan struct{}), stopped: make(chan struct{}),
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	first, err := c.open(ctx)
	if err != nil {
		c.cancel()
		return nil, err
	}
	go c.run(first)
	if err := c.lookAround(ctx); err != nil {
		c.abort()
		return nil, err
	}
	return c, nil
}

// open asks each server once for a new session. A short one too may take its time.
func (c *Conn) open(ctx context.Context) (*wire, error) {
	var errs []error
	ctx, cancel := context.WithTimeout(ctx, maxPatience)
	defer cancel()
	for left := len(c.cfg.Servers); left > 0; left-- {
		conn, w, err := c.try(ctx, remaining(ctx)/time.Duration(left))
		if err == nil {
			c.who = w.identity
			c.proof.timeout = w.timeout
			c.proof.created(w.sentAt)
			return newWire(c, conn, w.sentAt), nil
		}
		errs = append(errs, err)
		if ctx.Err() != nil {
			break
		}
	}
	return nil, fmt.Errorf("zk: no server opens a session: %w", errors.Join(errs...))
}

// remaining is how long a context with a deadline lasts.
func remaining(ctx context.Context) time.Duration {
	deadline, _ := ctx.Deadline()
	return time.Until(deadline)
}

// lookAround finds out what can be known right after the handshake.
func (c *Conn) lookAround(ctx context.Context) error {
	_, _, err := c.Get(ctx, "/")
	switch {
	case errors.Is(err, ErrNoNode):
		return fmt.Errorf("zk: %s: %w", c.cfg.Chroot, ErrNoChroot)
	case errors.Is(err, ErrNoAuth):
		return nil // it is there
	}
	return err
}

// abort ends a session that nobody has got to know.
func (c *Conn) abort() {
	ctx, cancel := context.WithTimeout(context.Background(), c.Timeout())
	defer cancel()
	c.Close(ctx)
}

// Session is the number of the session, as in Stat.EphemeralOwner.
func (c *Conn) Session() int64 { return c.who.id }

// Timeout is what the servers made of the timeout that was asked for.
func (c *Conn) Timeout() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.proof.timeout
}

// Deadline is until when the servers certainly don't end the session by themselves,
// whatever has happened since. It moves on while the session does well: right after
// that between a half and three quarters of the timeout are left, if the servers answer
// within a twenty-fifth of it. Once it has passed
// nobody here knows: only Done tells of a fact.
func (c *Conn) Deadline() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.proof.until
}

// Done is closed when the session is over: the servers said so, or Close was called.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Err is why the session is over: ErrSessionExpired, ErrAuthFailed or ErrClosed. It is
// nil before Done is closed.
func (c *Conn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Close ends the session, with its ephemeral nodes and watches. An error means that the
// servers haven't confirmed it before ctx ended: they end the session when its timeout
// has passed. Either way nothing can be asked any more. Calls that wait for an answer
// get it first, while ctx lasts.
func (c *Conn) Close(ctx context.Context) error {
	err := c.sayGoodbye(ctx)
	c.end(ErrClosed)
	select {
	case <-c.stopped:
	case <-ctx.Done():
	}
	return err
}

func (c *Conn) sayGoodbye(ctx context.Context) error {
	c.mu.Lock()
	first := !c.closing && c.err == nil
	c.closing = true
	c.mu.Unlock()
	if !first {
		select {
		case <-c.done:
			return nil
		case <-ctx.Done():
			return fmt.Errorf("zk: close: %w", ctx.Err())
		}
	}
	k := newCall(opCloseSession, "")
	k.repeat = true
	err := c.do(ctx, k)
	if errors.Is(err, ErrSessionExpired) {
		return nil
	}
	if err == nil {
		k.free()
	}
	return err
}

// end makes the session over. Only the first reason counts.
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
