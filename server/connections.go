package server

import (
	"container/list"
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"sync"
	"time"
)

// strangerTime is how long a client may take for its first request, and how long a connection may be idle over which
// no request was let in yet.
const strangerTime = 10 * time.Second

// connections has the connections of all clients. If there are as many as there may be, a new one ends another: the
// oldest of a stranger, or else the one of a client that has been idle for longest. The zero value is ready, and
// safe for concurrent use.
type connections struct {
	most int // 0: any number

	mu        sync.Mutex
	all       map[net.Conn]*connection
	strangers list.List // of *connection, the oldest first
	idle      list.List // of clients, the longest idle first
}

// connection is one connection. Its client is a stranger until a request of its was let in.
type connection struct {
	conn  net.Conn
	known bool
	place *list.Element // in strangers or in idle; nil: it serves a client
	limit *time.Timer   // of a stranger that is idle
}

type connectionKey struct{}

// accept adds a connection, or closes it if there is no room.
func (c *connections) accept(ctx context.Context, conn net.Conn) context.Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.all == nil {
		c.all = map[net.Conn]*connection{}
	}
	if c.most > 0 && len(c.all) >= c.most && !c.makeRoom() {
		closeNow(conn)
		return ctx
	}
	n := &connection{conn: conn}
	n.place = c.strangers.PushBack(n)
	c.all[conn] = n
	return context.WithValue(ctx, connectionKey{}, n)
}

// makeRoom ends the connection that can be spared most easily. The caller has locked mu.
func (c *connections) makeRoom() bool {
	for _, l := range []*list.List{&c.strangers, &c.idle} {
		if e := l.Front(); e != nil {
			n := e.Value.(*connection)
			c.remove(n)
			closeNow(n.conn)
			return true
		}
	}
	return false
}

// remove forgets a connection. The caller has locked mu.
func (c *connections) remove(n *connection) {
	c.unlist(n)
	delete(c.all, n.conn)
}

// unlist takes a connection out of its list. The caller has locked mu.
func (c *connections) unlist(n *connection) {
	if n.limit != nil {
		n.limit.Stop()
		n.limit = nil
	}
	switch {
	case n.place == nil:
	case n.known:
		c.idle.Remove(n.place)
	default:
		c.strangers.Remove(n.place)
	}
	n.place = nil
}

// closeNow closes a connection without a farewell, which TLS would wait for.
func closeNow(conn net.Conn) {
	if secure, ok := conn.(*tls.Conn); ok {
		conn = secure.NetConn()
	}
	conn.Close()
}

// changed notes what a connection does.
func (c *connections) changed(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.all[conn]
	if n == nil {
		return // it was closed to make room
	}
	switch state {
	case http.StateIdle:
		c.unlist(n)
		if n.known {
			n.place = c.idle.PushBack(n)
			return
		}
		n.place = c.strangers.PushBack(n)
		n.limit = time.AfterFunc(strangerTime, func() { closeNow(conn) }) // its next request may be under way, as with any limit of idle time
	case http.StateActive:
		if n.known {
			c.unlist(n)
		} else if n.limit != nil {
			n.limit.Stop()
		}
	case http.StateClosed:
		c.remove(n)
	}
}

// ended forgets a connection that was no longer HTTP's.
func (c *connections) ended(ctx context.Context) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n, _ := ctx.Value(connectionKey{}).(*connection); n != nil {
		c.remove(n)
	}
}

// letIn notes that the server has let in a request, all of which has arrived: its client is no stranger.
func (c *connections) letIn(ctx context.Context) {
	n, _ := ctx.Value(connectionKey{}).(*connection)
	if n == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !n.known {
		c.unlist(n)
		n.known = true
	}
}
