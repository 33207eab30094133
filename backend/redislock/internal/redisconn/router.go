package redisconn

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/distlock/distlock/driver"
)

// topology says where servers are.
type topology struct {
	name    string
	slotted bool          // as in Client.Slotted
	maxAge  time.Duration // at which a table in use is loaded again, or 0

	// load returns the slot table. known are the addresses of the last one.
	load func(ctx context.Context, known []string, at func(addr string) (*Server, error)) (slotTable, error)

	// open returns a server at an address that load has returned.
	open func(addr string) *Server

	close func() // may be nil
}

// refreshing is one load of the table. All callers that want one share it.
type refreshing struct {
	began time.Time
	done  chan struct{}
	err   error
}

const (
	refreshTimeout = 3 * time.Second        // of a load
	refreshGap     = 50 * time.Millisecond  // between the beginnings of two loads
	retiredGrace   = 10 * time.Second       // in which a server that left the table may answer
	staleWait      = 600 * time.Millisecond // for a load, by a request after a pause
)

// All returns the servers that have keys.
func (c *Client) All(ctx context.Context) ([]*Server, error) {
	if c.only != nil {
		return []*Server{c.only}, nil
	}
	if err := c.wait(ctx, c.refresh()); err != nil {
		return nil, err
	}
	c.mu.Lock()
	addrs := c.table.addrs()
	c.mu.Unlock()
	var list []*Server
	for _, addr := range addrs {
		s, err := c.open(addr)
		if err != nil {
			return nil, err
		}
		list = append(list, s)
	}
	return list, nil
}

// fresh loads the table if there is none, or if it is too old.
func (c *Client) fresh(ctx context.Context) error {
	c.mu.Lock()
	exists, age, idle := c.table != nil, time.Since(c.refreshBegan), time.Since(c.refreshEnded)
	c.mu.Unlock()
	limit := c.topology.maxAge
	if exists && (limit == 0 || age <= limit) {
		return nil
	}
	l := c.refresh()
	if !exists {
		return c.wait(ctx, l)
	}
	if idle > 2*limit {
		// There was no traffic for a while. If the topology can't be queried, the old table must
		// do: its server may be well. So the caller keeps some of its time, and a load that takes
		// longer does not delay later callers.
		left := time.Until(l.began.Add(staleWait))
		if end, ok := ctx.Deadline(); ok {
			left = min(left, time.Until(end)/2)
		}
		soon, cancel := context.WithTimeout(ctx, left)
		defer cancel()
		c.wait(soon, l)
	}
	return nil
}

func (c *Client) wait(ctx context.Context, l *refreshing) error {
	select {
	case <-l.done:
		return l.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Refresh begins to look up again which server has which keys.
func (c *Client) Refresh() {
	if c.only == nil {
		c.refresh()
	}
}

// refresh begins to load the table, unless that is under way.
func (c *Client) refresh() *refreshing {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.refreshing != nil {
		return c.refreshing
	}
	l := &refreshing{began: time.Now(), done: make(chan struct{}), err: driver.ErrClosed}
	if c.ctx.Err() != nil {
		close(l.done)
		return l
	}
	c.refreshing = l
	gap := time.Until(c.refreshBegan.Add(refreshGap))
	c.wg.Go(func() { c.load(l, gap) })
	return l
}

func (c *Client) load(l *refreshing, gap time.Duration) {
	defer close(l.done)
	if gap > 0 {
		select {
		case <-time.After(gap):
		case <-c.ctx.Done():
		}
	}
	ctx, cancel := context.WithTimeout(c.ctx, refreshTimeout)
	defer cancel()
	c.mu.Lock()
	c.refreshBegan = time.Now()
	known := c.table.addrs()
	c.mu.Unlock()
	t, err := c.topology.load(ctx, known, c.open)
	if err == nil && len(t) == 0 {
		err = errNoSlots
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refreshing, l.err, c.refreshEnded = nil, err, time.Now()
	if err == nil {
		c.table = t
		c.retireServers()
	}
}

// setOwner notes a server's word that a slot is elsewhere.
func (c *Client) setOwner(slot int, addr string) {
	c.mu.Lock()
	if slot < len(c.table) {
		c.table[slot] = addr
	}
	c.mu.Unlock()
	c.refresh()
}

// open returns the server at an address.
func (c *Client) open(addr string) (*Server, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ctx.Err() != nil {
		return nil, driver.ErrClosed
	}
	s, ok := c.servers[addr]
	if !ok {
		s = c.topology.open(addr)
		c.servers[addr] = s
	}
	return s, nil
}

// retireServers closes servers that are no longer in the table, once they have had time to answer.
// The mutex is held.
func (c *Client) retireServers() {
	addrs := c.table.addrs()
	for addr, s := range c.servers {
		if !slices.Contains(addrs, addr) {
			time.AfterFunc(retiredGrace, func() { c.drop(addr, s) })
		}
	}
}

func (c *Client) drop(addr string, s *Server) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.servers[addr] == s && !slices.Contains(c.table.addrs(), addr) {
		delete(c.servers, addr)
		s.Close()
	}
}

// Close closes all connections.
func (c *Client) Close() {
	c.cancel()
	c.mu.Lock()
	servers := c.servers
	c.servers = map[string]*Server{}
	c.mu.Unlock()
	for _, s := range servers {
		s.Close()
	}
	switch {
	case c.only != nil:
		c.only.Close()
	case c.topology.close != nil:
		c.topology.close()
	}
	c.wg.Wait()
}

var errNoSlots = errors.New("no server has any slot")
