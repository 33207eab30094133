package zk

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"
)

const (
	answerHead = 16      // number, transaction, error
	maxFrame   = 1 << 30 // no server means a longer one
	keepBuffer = 64 << 10
)

// read takes in what the server sends until the connection breaks, or should.
func (w *wire) read() {
	r := bufio.NewReaderSize(w.net, 16<<10)
	var buf []byte
	for {
		frame, whole, err := readFrame(r, buf, w.c.cfg.MaxAnswer)
		if err != nil || w.c.received(frame, whole) != nil {
			return
		}
		if buf = frame[:0]; cap(buf) > keepBuffer {
			buf = nil
		}
	}
}

// readFrame reads a message into buf, or a longer one: of one that is too long only the
// head.
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
	_, err = io.CopyN(io.Discard, r, int64(size-kept))
	return buf[:kept], kept == size, err
}

// received takes in one message. An error means that the connection is of no more use.
func (c *Conn) received(frame []byte, whole bool) error {
	d := &decoder{b: frame}
	xid, zxid, code := d.int(), d.long(), d.int()
	if xid == xidEvent {
		return c.happened(d)
	}
	k := c.land(zxid)
	if k == nil {
		return errProtocol
	}
	err := codeError(code)
	switch {
	case k.xid != xid:
		err = errProtocol
	case err == nil && !whole:
		err = ErrTooLarge
	case err == nil:
		k.decode(d)
		err = k.err
	}
	return c.settle(k, code, err)
}

// land takes the call that an answer belongs to.
func (c *Conn) land(zxid int64) *call {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.heard = time.Now()
	c.zxid = max(c.zxid, zxid)
	return c.flying.pop()
}

// settle ends a call with what the server says, and the session if that is over.
func (c *Conn) settle(k *call, code int32, err error) error {
	broken := errors.Is(err, errProtocol)
	if broken {
		err = fmt.Errorf("%w: %w", ErrConnectionLoss, err)
	}
	goodbye := k.op == opCloseSession
	c.mu.Lock()
	if err == nil && k.commits() {
		c.proof.agreed(k.at)
	}
	c.proof.answered(k.at, c.heard)
	c.finish(k, err)
	c.mu.Unlock()
	switch {
	case goodbye && err == nil:
		c.end(ErrClosed)
		return ErrClosed
	case errors.Is(err, ErrSessionExpired):
		c.end(ErrSessionExpired)
		return err
	case errors.Is(err, ErrAuthFailed):
		c.end(ErrAuthFailed)
		return err
	case broken || code == codeMoved:
		return err
	}
	return nil
}
