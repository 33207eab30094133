package redisconn

import (
	"context"
	"errors"
	"net"
	"slices"
	"time"
)

// sendAlone writes a request and reads its answer in the goroutine of its caller, while nobody else needs the connection: that is
// quicker than to be woken by another goroutine. The mutex is held at first, and not at the end.
func (m *multiplexer) sendAlone(ctx context.Context, c *pipe, x *request) error {
	c.reading, c.writing = true, true
	works := m.take(c, aloneBytes) && m.writeOut(c)
	m.endWriting(c)
	m.mu.Unlock()
	if !works {
		return m.await(ctx, x)
	}
	c.readWithin(lookUp/2, lookUp)
	err := c.receive(x.n)
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case c.broken == nil && err == nil && m.answered(c) == x:
		if c.crowded = c.owes(); c.crowded {
			go m.read(c)
		} else {
			m.endReading(c)
		}
		return nil
	case c.broken == nil && c.outOfTime(err):
		go m.read(c)
	case c.broken == nil:
		m.fail(c, err)
	}
	m.mu.Unlock()
	defer m.mu.Lock()
	return m.await(ctx, x)
}

// endWriting is called by a caller that has written. More is written by another goroutine.
func (m *multiplexer) endWriting(c *pipe) {
	c.writing = false
	m.writeMore(c)
}

// writeMore begins to write what is queued, in another goroutine.
func (m *multiplexer) writeMore(c *pipe) {
	if len(m.queue) == 0 || c.writing || c != m.current {
		return
	}
	if !c.takes() {
		m.late.waits(context.Background(), c.silent)
		return
	}
	c.writing = true
	go m.writeLater(c)
	if len(c.sent)-c.head > fewSent {
		// What was started last runs first, and sends the one before it behind the callers that were just answered: they have more to
		// write. runtime.Gosched would send it behind all goroutines of a busy program.
		go func() {}()
	}
}

func (m *multiplexer) writeLater(c *pipe) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.write(c)
}

// write writes what is queued as long as there is any.
func (m *multiplexer) write(c *pipe) {
	c.writing = true
	for m.writeBatch(c, min(c.owed+maxBatch, maxOwed)) {
	}
	m.endWriting(c)
}

// writeBatch writes some of what is queued, until so many bytes are owed. It reports whether it could.
func (m *multiplexer) writeBatch(c *pipe, owed int) bool {
	if !m.take(c, owed) {
		return false
	}
	if !c.reading {
		c.reading = true
		go m.read(c)
	}
	return m.writeOut(c)
}

// take moves requests from the queue into a batch, until so many bytes are owed. It reports whether there are any. An idle connection
// that the server has ended takes none: they go to another.
func (m *multiplexer) take(c *pipe, owed int) bool {
	if c.broken != nil || c != m.current || len(m.queue) == 0 || !c.takes() {
		return false
	}
	if c.owed == 0 {
		if c.admitted && c.peek.closed() {
			m.fail(c, net.ErrClosed)
			return false
		}
		c.silent = time.Now()
	}
	c.out, c.batch = c.out[:0], 0
	for _, x := range m.queue {
		if c.batch > 0 && c.owed+x.size > owed {
			break
		}
		if c.batch == 0 && x.size > maxBatch {
			c.out, x.bytes = x.bytes, nil
		} else {
			c.out = append(c.out, x.bytes...)
		}
		x.stage = sent
		c.batch++
		c.owed += x.size
		c.sent = append(c.sent, x)
	}
	c.crowded = c.batch > 1 || len(c.sent)-c.head > 1
	m.setQueue(slices.Delete(m.queue, 0, c.batch))
	return true
}

// writeOut writes the batch, without the mutex. If that fails, nothing was sent of what no byte was written of.
func (m *multiplexer) writeOut(c *pipe) bool {
	m.mu.Unlock()
	n, err := c.Write(c.out)
	m.mu.Lock()
	if err == nil && c.broken != nil {
		err = c.broken
	}
	if err != nil {
		for _, x := range c.unwritten(n) {
			x.failed(unwritten(err))
			x.end(x.later)
		}
	}
	if cap(c.out) > 2*maxBatch {
		c.out = nil
	}
	if c.batch = 0; err != nil {
		m.fail(c, err)
	}
	return err == nil
}

// read reads answers as long as any is owed. The caller that gets the last one finds the connection idle, and another goroutine
// may read then.
func (m *multiplexer) read(c *pipe) {
	var x *request // was answered
	var later chan struct{}
	m.mu.Lock()
	for c.broken == nil && c.owes() {
		n, silent := c.sent[c.head].n, c.silent
		m.mu.Unlock()
		if x != nil {
			x.end(later)
			x = nil
		}
		late := c.readUntil(silent.Add(m.timeout))
		err := c.receive(n)
		m.mu.Lock()
		switch {
		case c.broken != nil:
		case err == nil:
			if x = m.answered(c); x != nil {
				later = x.later
			}
		case !c.outOfTime(err), late: // once more, if this process was paused and the answer is there
			m.fail(c, err)
		}
	}
	m.endReading(c)
	m.mu.Unlock()
	if x != nil {
		x.end(later)
	}
}

// answered gives the first request its answers, and returns it. It returns nil if the server has refused us.
func (m *multiplexer) answered(c *pipe) *request {
	if !c.admitted {
		if re, is := c.got[0].Err.(*ReplyError); is && re.tooMany() {
			m.fail(c, re) // and has not looked at anything
			return nil
		}
		c.admitted = true
	}
	x, readonly := c.first(), slices.ContainsFunc(c.got, isReadOnly)
	x.answered(c.got)
	clear(c.got)
	c.got = c.got[:0]
	if c.owes() && !c.in.buffered() {
		c.silent = time.Now()
	}
	if readonly && c == m.current {
		m.replace() // the address may lead to another server by now
	}
	m.writeMore(c)
	return x
}

// isReadOnly reports whether the server is a replica.
func isReadOnly(a Answer) bool {
	re, is := a.Err.(*ReplyError)
	return is && re.HasCode("READONLY")
}

// errUnasked is the error of a connection that can't be used, since what comes next would be taken for an answer.
var errUnasked = errors.New("the server has answered more than was asked")

func (m *multiplexer) endReading(c *pipe) {
	c.reading = false
	switch {
	case c.broken == nil && c.in.buffered():
		m.fail(c, errUnasked)
	case c != m.current:
		m.forget(c)
	}
}
