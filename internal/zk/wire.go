package zk

import (
	"context"
	"net"
	"sync"
	"time"
)

// wire is one connection of a session, after the handshake.
type wire struct {
	c      *Conn
	net    net.Conn
	beat   time.Time // when something was written last that a majority has to agree to
	closed chan struct{}
}

func newWire(c *Conn, conn net.Conn, beat time.Time) *wire {
	return &wire{c: c, net: conn, beat: beat, closed: make(chan struct{})}
}

// serve passes requests and answers until the connection breaks or the session ends.
func (w *wire) serve() {
	stop := context.AfterFunc(w.c.ctx, func() { w.net.Close() })
	defer stop()
	w.c.introduce()
	var writer sync.WaitGroup
	writer.Go(w.write)
	w.read()
	w.net.Close()
	close(w.closed)
	writer.Wait()
}

// introduce puts before everything else what a new connection begins with: the user,
// and the watches that the server doesn't know.
func (c *Conn) introduce() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.heard = time.Now()
	var first []*call
	if c.cfg.User != "" {
		first = append(first, c.login())
	}
	first = append(first, c.renewWatches()...)
	c.queue = append(first, c.queue...)
}

func (c *Conn) login() *call {
	k := newCall(opAuth, "")
	k.xid, k.bound = xidAuth, true
	k.frame = appendInt(k.frame, 0)
	k.frame = appendText(k.frame, "digest")
	k.frame = appendText(k.frame, c.cfg.User+":"+c.cfg.Password)
	return k
}

// maxFlush is how much is written at once.
const maxFlush = 64 << 10

func (w *wire) write() {
	defer w.net.Close()
	timer := time.NewTimer(0)
	defer timer.Stop()
	var buf []byte
	for {
		var idle time.Duration
		buf, idle = w.take(buf[:0])
		switch {
		case len(buf) > 0:
			if _, err := w.net.Write(buf); err != nil {
				return
			}
			continue
		case idle <= 0:
			return
		}
		timer.Reset(idle)
		select {
		case <-w.c.kick:
		case <-timer.C:
		case <-w.closed:
			return
		}
	}
}

// take makes one message of what there is to write. If there is nothing it says how
// long that will be so at most: 0 if the server has been silent for too long.
func (w *wire) take(buf []byte) ([]byte, time.Duration) {
	c, now := w.c, time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	every := c.proof.timeout / beatPart
	if now.Sub(w.beat) >= every {
		c.queue = append(c.queue, beat())
		w.beat = now
	}
	n := 0
	for ; n < len(c.queue) && len(buf) < maxFlush; n++ {
		k := c.queue[n]
		c.launch(k, now)
		buf = append(buf, k.frame...)
		if k.commits() {
			w.beat = now
		}
	}
	c.queue = cut(c.queue, n)
	idle := w.beat.Add(every).Sub(now)
	if k := c.flying.first(); k != nil {
		idle = min(idle, c.lastSign(k).Add(2*every).Sub(now))
	}
	if n > 0 {
		w.net.SetWriteDeadline(now.Add(2 * every))
	}
	return buf, idle
}

// lastSign is when the server showed last that it lives, or had no reason to.
func (c *Conn) lastSign(oldest *call) time.Time {
	if oldest.at.After(c.heard) {
		return oldest.at
	}
	return c.heard
}

// launch marks a call as written.
func (c *Conn) launch(k *call, now time.Time) {
	xid := k.xid
	if xid >= 0 { // a repeated one gets a new number
		c.xid = max(c.xid+1, 1)
		xid = c.xid
	}
	k.number(xid)
	k.stage, k.at = sent, now
	c.flying.push(k)
}

// cut removes the first n calls, and keeps the memory.
func cut(list []*call, n int) []*call {
	rest := copy(list, list[n:])
	clear(list[rest:])
	return list[:rest]
}

// beat is a write that changes nothing: it proves that the session lives.
func beat() *call {
	k := newCall(opMulti, "")
	k.bound = true
	k.frame = appendMultiEnd(k.frame)
	return k
}
