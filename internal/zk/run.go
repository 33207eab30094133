package zk

import (
	"context"
	"errors"
	"net"
	"time"
)

// run serves one connection after the other until the session is over.
func (c *Conn) run(w *wire) {
	defer close(c.stopped)
	for w != nil {
		w.serve()
		c.disconnected()
		w = c.reconnect()
	}
	c.bury()
}

// try shakes hands with the next server.
func (c *Conn) try(ctx context.Context, patience time.Duration) (net.Conn, welcome, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	addr := c.cfg.Servers[c.next]
	c.next = (c.next + 1) % len(c.cfg.Servers)
	c.mu.Lock()
	zxid := c.zxid
	c.mu.Unlock()
	return c.cfg.attempt(ctx, addr, c.who, zxid)
}

const (
	minPause    = 5 * time.Millisecond
	maxPause    = time.Second
	maxPatience = 10 * time.Second
	midPatience = 2 * time.Second
)

// morePatience is how long a server may take in the next round, after none has taken the
// session up. A server that has lost the others is silent: for longer than the session
// lives none of them may keep it from those that have a leader again.
func morePatience(d, timeout time.Duration) time.Duration {
	return min(2*d, max(timeout, midPatience), maxPatience)
}

// reconnect takes the session up at another server, however long that takes. It
// returns nil when the session is over.
func (c *Conn) reconnect() *wire {
	patience, pause := c.Timeout()/beatPart, minPause
	for tries := 1; c.ctx.Err() == nil; tries++ {
		conn, w, err := c.try(c.ctx, patience)
		switch {
		case err == nil:
			return c.connected(conn, w)
		case errors.Is(err, ErrSessionExpired):
			c.end(ErrSessionExpired)
		case tries%len(c.cfg.Servers) == 0: // all have been asked
			c.sleep(pause)
			pause, patience = min(2*pause, maxPause), morePatience(patience, c.Timeout())
		}
	}
	return nil
}

func (c *Conn) sleep(d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-c.ctx.Done():
	}
}

func (c *Conn) connected(conn net.Conn, w welcome) *wire {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.proof.timeout = w.timeout
	c.proof.connected(w.sentAt)
	return newWire(c, conn, time.Time{})
}

// disconnected settles what was written and not answered: what may be repeated goes
// before everything else, the rest fails.
func (c *Conn) disconnected() {
	c.mu.Lock()
	defer c.mu.Unlock()
	var again []*call
	for k := c.flying.pop(); k != nil; k = c.flying.pop() {
		switch {
		case k.stage == abandoned:
			c.discard(k)
		case k.repeat && k.repeats < maxRepeats:
			k.stage, k.repeats = queued, k.repeats+1
			again = append(again, k)
		default:
			c.finish(k, ErrConnectionLoss)
		}
	}
	for _, k := range c.queue {
		if k.bound {
			c.finish(k, ErrConnectionLoss)
		} else {
			again = append(again, k)
		}
	}
	c.queue = again
}

// bury fails what will never be answered, and tells those who watch.
func (c *Conn) bury() {
	c.mu.Lock()
	why := c.err
	for _, k := range c.queue {
		c.finish(k, why)
	}
	c.queue = nil
	fire := c.allWatches()
	c.mu.Unlock()
	for _, w := range fire {
		w.f(Event{Type: EventSession, Path: c.cfg.below(w.spot.path), Err: why})
	}
}
