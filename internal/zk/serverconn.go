package zk

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"time"

	"github.com/distlock/distlock/internal/wait"
)

// dialSession connects to one server and opens or resumes a session there.
func (c *Config) dialSession(ctx context.Context, addr string, own identity, zxid int64) (net.Conn, connectResponse, error) {
	conn, err := c.connect(ctx, addr)
	if err != nil {
		return nil, connectResponse{}, fmt.Errorf("%w%s", err, c.TLS.Hint(err))
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	w, err := handshake(conn, own, c.Timeout, zxid)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		conn.Close()
		return nil, w, fmt.Errorf("%s: %w%s", addr, err, c.TLS.Hint(err))
	}
	return conn, w, nil
}

// connectResponse is a server's answer to a handshake.
type connectResponse struct {
	identity
	timeout time.Duration
	sentAt  time.Time // when the request was sent
}

const (
	maxConnectResponse = 1 << 10
	passwordSize       = 16
)

// errNotServed means that a server has closed the connection without a word. It does so if it doesn't serve for now, and to
// a session that has seen more than the server has.
var errNotServed = errors.New("the server doesn't serve")

// handshake opens a session on a new connection, or resumes the session of own.
func handshake(conn net.Conn, own identity, timeout time.Duration, zxid int64) (connectResponse, error) {
	w := connectResponse{sentAt: time.Now()}
	if _, err := conn.Write(connectRequest(own, timeout, zxid)); err != nil {
		return w, err
	}
	var head [4]byte
	if _, err := io.ReadFull(conn, head[:]); err != nil {
		return w, fmt.Errorf("%w: %w", errNotServed, err)
	}
	size := binary.BigEndian.Uint32(head[:])
	if size > maxConnectResponse {
		return w, fmt.Errorf("%w: not ZooKeeper's protocol", errProtocol)
	}
	b := make([]byte, size)
	if _, err := io.ReadFull(conn, b); err != nil {
		return w, err
	}
	return w, w.decode(&decoder{b: b}, own)
}

func connectRequest(own identity, timeout time.Duration, zxid int64) []byte {
	b := make([]byte, 4, 64)
	b = appendInt(b, 0) // the protocol's version
	b = appendLong(b, zxid)
	b = appendInt(b, int32(min(timeout.Milliseconds(), 1<<31-1)))
	b = appendLong(b, own.id)
	if own.password == nil {
		own.password = make([]byte, passwordSize)
	}
	b = appendText(b, own.password)
	b = appendBool(b, false) // no read-only server
	binary.BigEndian.PutUint32(b, uint32(len(b)-4))
	return b
}

func (c *connectResponse) decode(d *decoder, own identity) error {
	d.int()
	c.timeout = time.Duration(d.int()) * time.Millisecond
	c.id, c.password = d.long(), d.buffer()
	readOnly := len(d.b) > 0 && d.bool() // absent before 3.4
	switch {
	case d.bad:
		return errProtocol
	case c.timeout <= 0 && own.id != 0:
		return ErrSessionExpired
	case c.timeout <= 0 || c.id == 0 || own.id != 0 && c.id != own.id:
		return fmt.Errorf("%w: another session than requested", errProtocol)
	case readOnly:
		return errors.New("the server is read-only: it has lost the other servers")
	}
	return nil
}

// serverConn is a session's connection to one server, after the handshake.
type serverConn struct {
	c        *Conn
	net      net.Conn
	lastBeat time.Time // when a heartbeat was last sent
	closed   chan struct{}
}

func newServerConn(c *Conn, conn net.Conn, lastBeat time.Time) *serverConn {
	return &serverConn{c: c, net: conn, lastBeat: lastBeat, closed: make(chan struct{})}
}

// serve sends requests and receives answers until the connection breaks or the session ends.
func (s *serverConn) serve() {
	stop := context.AfterFunc(s.c.ctx, func() { s.net.Close() })
	defer stop()
	s.c.queueIntroduction()
	var writer wait.Group
	writer.Go(s.write)
	s.read()
	s.net.Close()
	close(s.closed)
	writer.Wait()
}

// queueIntroduction puts the login, and the watches that the server doesn't know, before all other
// requests.
func (c *Conn) queueIntroduction() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lastReceived = time.Now()
	first := c.logins.requests()
	if c.closing {
		first = nil // to close a session takes no login
	} else {
		first = append(first, c.renewWatches()...)
	}
	c.queue = append(first, c.queue...)
	c.logins.pending = 0
	for _, q := range c.queue {
		if q.opcode == opAuth {
			c.logins.pending++
		}
	}
}

// maxPaths bounds the length of the paths in one request that sets watches, unless there is only one.
const maxPaths = 128 << 10

// renewWatches sets all watches at a new server. It fires the watches of nodes that have changed since the
// last transaction that this session knows of.
func (c *Conn) renewWatches() []*rpc {
	var list []*rpc
	var data, children []string
	size := 0
	flush := func() {
		if size > 0 {
			list = append(list, c.setWatches(data, children))
		}
		data, children, size = nil, nil, 0
	}
	for _, at := range c.watches.rearm() {
		length := len(at.path) + 4
		if size+length > min(maxPaths, c.cfg.MaxRequest/2) {
			flush()
		}
		size += length
		if at.kind == kindData {
			data = append(data, at.path)
		} else {
			children = append(children, at.path)
		}
	}
	flush()
	return list
}

func (c *Conn) setWatches(data, children []string) *rpc {
	q := newRPC(opSetWatches, "")
	q.xid, q.internal = xidSetWatches, true
	q.frame = appendLong(q.frame, c.zxid)
	q.frame = appendTexts(q.frame, data)
	q.frame = appendTexts(q.frame, nil) // nodes that must not exist
	q.frame = appendTexts(q.frame, children)
	return q
}

// maxFlush is how much is written at once.
const maxFlush = 64 << 10

func (s *serverConn) write() {
	defer s.net.Close()
	timer := time.NewTimer(0)
	defer timer.Stop()
	var buf []byte
	for {
		var idle time.Duration
		buf, idle = s.nextWrite(buf[:0])
		switch {
		case len(buf) > 0:
			if _, err := s.net.Write(buf); err != nil {
				return
			}
			continue
		case idle <= 0:
			return
		}
		timer.Reset(idle)
		select {
		case <-s.c.toWrite:
		case <-timer.C:
		case <-s.closed:
			return
		}
	}
}

// nextWrite appends all queued requests to buf. If there are none, idle is how long the writer may
// wait; 0 means that the server has been silent for too long.
func (s *serverConn) nextWrite(buf []byte) (_ []byte, idle time.Duration) {
	c, now := s.c, time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	every := c.proof.timeout / beatPart
	last := s.lastBeat
	if c.lastAgreed.After(last) {
		last = c.lastAgreed
	}
	if now.Sub(last) >= every {
		c.queue = append(c.queue, newHeartbeat())
		s.lastBeat, last = now, now
	}
	n := 0
	for ; n < len(c.queue) && len(buf) < maxFlush; n++ {
		q := c.queue[n]
		if c.logins.pending > 0 && q.opcode != opAuth {
			break
		}
		c.markSent(q, now)
		buf = append(buf, q.frame...)
	}
	c.queue = slices.Delete(c.queue, 0, n)
	idle = last.Add(every).Sub(now)
	if len(c.inFlight) > 0 {
		answered := c.inFlight[0].sentAt
		if c.lastReceived.After(answered) {
			answered = c.lastReceived
		}
		idle = min(idle, answered.Add(2*every).Sub(now))
	}
	if n > 0 {
		s.net.SetWriteDeadline(now.Add(2 * every))
	}
	return buf, idle
}

// newHeartbeat returns a write that changes nothing: it proves that the session lives.
func newHeartbeat() *rpc {
	q := newEmptyWrite()
	q.internal = true
	return q
}

func newEmptyWrite() *rpc {
	q := newRPC(opMulti, "")
	q.frame = appendMultiEnd(q.frame)
	return q
}

func (c *Conn) markSent(q *rpc, now time.Time) {
	xid := q.xid
	if xid >= 0 { // a resent request gets a new xid
		c.xid = max(c.xid+1, 1)
		xid = c.xid
	}
	q.assignXID(xid)
	q.stage, q.sentAt = sent, now
	c.inFlight = append(c.inFlight, q)
}

const (
	answerHead = 16 // xid, transaction, error
	maxFrame   = 1 << 30
	keepBuffer = 64 << 10
)

// read handles messages until the connection breaks or becomes unusable.
func (s *serverConn) read() {
	r := bufio.NewReaderSize(s.net, 16<<10)
	var buf []byte
	for {
		frame, whole, err := readFrame(r, buf, s.c.cfg.MaxAnswer)
		if err != nil || s.c.handleMessage(frame, whole) != nil {
			return
		}
		if buf = frame[:0]; cap(buf) > keepBuffer {
			buf = nil
		}
	}
}

// readFrame reads a message into buf, or into a larger one. Of a message above the limit it returns
// only the head.
func readFrame(r *bufio.Reader, buf []byte, limit int) (frame []byte, whole bool, err error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, false, err
	}
	size := int(int32(binary.BigEndian.Uint32(head[:])))
	if size < answerHead || size > maxFrame {
		return nil, false, errProtocol
	}
	kept := size
	if size > max(limit, answerHead) {
		kept = answerHead
	}
	if cap(buf) < kept {
		buf = make([]byte, kept)
	}
	if _, err := io.ReadFull(r, buf[:kept]); err != nil {
		return nil, false, err
	}
	_, err = r.Discard(size - kept)
	return buf[:kept], kept == size, err
}

// handleMessage returns an error if the connection can't be used any more.
func (c *Conn) handleMessage(frame []byte, whole bool) error {
	d := &decoder{b: frame}
	xid, zxid, code := d.int(), d.long(), d.int()
	if xid == xidEvent {
		return c.handleEvent(d)
	}
	q := c.popInFlight(zxid)
	if q == nil {
		return errProtocol
	}
	err := codeError(code)
	switch {
	case q.xid != xid:
		err = errProtocol
	case err == nil && !whole:
		err = ErrTooLarge
	case err == nil:
		err = q.decode(d)
	}
	if code == codeMoved || slices.Contains(q.answer.results, codeMoved) {
		c.takeBack(q)
		return ErrConnectionLoss
	}
	return c.complete(q, err)
}

// takeBack is for a request that was refused since the session is in use on another connection: it counts as not answered.
func (c *Conn) takeBack(q *rpc) {
	c.mu.Lock()
	defer c.mu.Unlock()
	q.answer = rpcAnswer{}
	c.inFlight = slices.Insert(c.inFlight, 0, q)
}

func (c *Conn) handleEvent(d *decoder) error {
	e := Event(d.int())
	d.int() // the state of the connection
	path := d.text()
	if d.bad {
		return errProtocol
	}
	c.mu.Lock()
	fired := c.watches.fire(e, path)
	c.mu.Unlock()
	for _, w := range fired {
		w.f(e)
	}
	return nil
}

// popInFlight returns the request that an answer belongs to.
func (c *Conn) popInFlight(zxid int64) *rpc {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lastReceived = time.Now()
	c.zxid = max(c.zxid, zxid)
	if len(c.inFlight) == 0 {
		return nil
	}
	q := c.inFlight[0]
	c.inFlight = slices.Delete(c.inFlight, 0, 1)
	return q
}

// complete finishes a request, and the session if the server says that it is over.
func (c *Conn) complete(q *rpc, err error) error {
	broken := errors.Is(err, errProtocol)
	if broken {
		err = fmt.Errorf("%w: %w", ErrConnectionLoss, err)
	}
	goodbye, login := q.opcode == opCloseSession, q.opcode == opAuth // q is not ours once it is finished
	forbidden := errors.Is(err, ErrNoAuth) || slices.Contains(q.answer.results, codeNoAuth)
	c.mu.Lock()
	if err == nil {
		c.broken = nil
	}
	if login && err == nil {
		c.logins.pending--
		c.toWrite.Notify()
	}
	if err == nil && q.commits() {
		c.proof.agreed(q.sentAt)
		c.lastAgreed = q.sentAt
	}
	c.proof.answered(q.sentAt, c.lastReceived)
	c.finish(q, err)
	c.mu.Unlock()
	switch {
	case goodbye && err == nil:
		c.end(ErrClosed)
		return ErrClosed
	case errors.Is(err, ErrSessionExpired):
		c.end(ErrSessionExpired)
		return err
	case errors.Is(err, ErrAuthFailed):
		c.failRefused(err)
		return err
	case broken:
		return err
	case forbidden:
		c.loginAgain()
	}
	c.useful = c.useful || !login
	return nil
}
