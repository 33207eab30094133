package redisconn

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/wait"
)

// router is the client of several servers: of a cluster, or of the master that sentinels name. Its
// slot table says which server has which slot. Each server has connections of its own, so that a
// slow or dead server stalls only its own slots.
//
// The table is loaded again when a server says that it is wrong, or does not answer, and, if the
// topology has a maximum age, from time to time while there is traffic.
type router struct {
	topology topology
	ctx      context.Context // ends at close
	cancel   context.CancelFunc
	wg       wait.Group

	mu           sync.Mutex
	table        slotTable         // guarded also inside
	servers      map[string]Server // by address
	refreshing   *refreshing       // nil: none is under way
	refreshBegan time.Time         // when the last load began
	refreshEnded time.Time         // when it ended, with or without success
}

// topology says where servers are.
type topology struct {
	name    string
	slotted bool          // as in Client.Slotted
	maxAge  time.Duration // at which a table in use is loaded again, or 0

	// load returns the slot table. known are the addresses of the last one.
	load func(ctx context.Context, known []string, at Dialer) (slotTable, error)

	// open returns a server at an address that load has returned.
	open Dialer

	close func() // may be nil
}

// Dialer returns the server at an address.
type Dialer func(ctx context.Context, addr string) (Server, error)

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

func newRouter(p topology) *router {
	r := &router{topology: p, servers: map[string]Server{}}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	return r
}

func (r *router) Do(ctx context.Context, key string, args []string) (any, error) {
	var a Answer
	err := r.route(ctx, key, func(s Server, asked bool) (redirection, string, error) {
		if asked {
			a = s.DoAll(ctx, [][]string{{"ASKING"}, args})[1]
		} else {
			a.Reply, a.Err = s.Do(ctx, args)
		}
		why, addr := redirectionOf(a.Err)
		return why, addr, a.Err
	})
	return a.Reply, err
}

func (r *router) DoAll(ctx context.Context, key string, commands [][]string) []Answer {
	var got []Answer
	err := r.route(ctx, key, func(s Server, asked bool) (redirection, string, error) {
		if asked {
			sent := withAsking(commands)
			got = withoutAsking(sent, s.DoAll(ctx, sent))
		} else {
			got = s.DoAll(ctx, commands)
		}
		why, addr := redirectionOfAll(commands, got)
		return why, addr, got[0].Err
	})
	if got == nil {
		got = FailAll(len(commands), err)
	}
	return got
}

// route sends to the server that has the key, and follows redirections.
func (r *router) route(ctx context.Context, key string, send func(s Server, asked bool) (redirection, string, error)) error {
	var p retryPauses
	var s Server
	var err error
	to, asked := "", false
	for sent := 1; ; sent++ {
		if s, err = r.serverAt(ctx, key, to); err != nil {
			return err
		}
		var why redirection
		if why, to, err = send(s, asked); why == executed {
			return r.checkServer(err)
		}
		asked = why == askAt
		if why == movedTo {
			r.setOwner(SlotOf(key), to)
		}
		if sent == maxSends || sent >= apartSends && why == notReady && Apart(err) {
			return err
		}
		// The first redirection is followed at once. Servers that disagree or are not ready need
		// time.
		if why == notReady || sent > 1 {
			r.refresh()
			if !p.wait(ctx) {
				return err
			}
		}
	}
}

// serverAt returns the server at an address, or the server that has the key if there is no
// address.
func (r *router) serverAt(ctx context.Context, key, addr string) (Server, error) {
	if addr != "" {
		return r.open(ctx, addr)
	}
	return r.At(ctx, key)
}

// checkServer refreshes the table after an error that is not a server's answer.
func (r *router) checkServer(err error) error {
	if re := (*ReplyError)(nil); err == nil || errors.As(err, &re) {
		return err
	}
	r.refresh()
	return err
}

func (r *router) At(ctx context.Context, key string) (Server, error) {
	if err := r.fresh(ctx); err != nil {
		return nil, err
	}
	r.mu.Lock()
	addr := r.table.owner(key)
	r.mu.Unlock()
	if addr == "" {
		r.refresh()
		return nil, fmt.Errorf("no server of the cluster has slot %d", SlotOf(key))
	}
	return r.open(ctx, addr)
}

func (r *router) All(ctx context.Context) ([]Server, error) {
	if err := r.wait(ctx, r.refresh()); err != nil {
		return nil, err
	}
	r.mu.Lock()
	addrs := r.table.addrs()
	r.mu.Unlock()
	var list []Server
	for _, addr := range addrs {
		s, err := r.open(ctx, addr)
		if err != nil {
			return nil, err
		}
		list = append(list, s)
	}
	return list, nil
}

// fresh loads the table if there is none, or if it is too old.
func (r *router) fresh(ctx context.Context) error {
	r.mu.Lock()
	exists, age, idle := r.table != nil, time.Since(r.refreshBegan), time.Since(r.refreshEnded)
	r.mu.Unlock()
	limit := r.topology.maxAge
	if exists && (limit == 0 || age <= limit) {
		return nil
	}
	l := r.refresh()
	if !exists {
		return r.wait(ctx, l)
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
		r.wait(soon, l)
	}
	return nil
}

func (r *router) wait(ctx context.Context, l *refreshing) error {
	select {
	case <-l.done:
		return l.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// refresh begins to load the table, unless that is under way.
func (r *router) refresh() *refreshing {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.refreshing != nil {
		return r.refreshing
	}
	l := &refreshing{began: time.Now(), done: make(chan struct{}), err: driver.ErrClosed}
	if r.ctx.Err() != nil {
		close(l.done)
		return l
	}
	r.refreshing = l
	gap := time.Until(r.refreshBegan.Add(refreshGap))
	r.wg.Go(func() { r.load(l, gap) })
	return l
}

func (r *router) load(l *refreshing, gap time.Duration) {
	defer close(l.done)
	if gap > 0 {
		select {
		case <-time.After(gap):
		case <-r.ctx.Done():
		}
	}
	ctx, cancel := context.WithTimeout(r.ctx, refreshTimeout)
	defer cancel()
	r.mu.Lock()
	r.refreshBegan = time.Now()
	known := r.table.addrs()
	r.mu.Unlock()
	t, err := r.topology.load(ctx, known, r.open)
	if err == nil && len(t) == 0 {
		err = errNoSlots
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refreshing, l.err, r.refreshEnded = nil, err, time.Now()
	if err == nil {
		r.table = t
		r.retireServers()
	}
}

// setOwner notes a server's word that a slot is elsewhere.
func (r *router) setOwner(slot int, addr string) {
	r.mu.Lock()
	if slot < len(r.table) {
		r.table[slot] = addr
	}
	r.mu.Unlock()
	r.refresh()
}

// open returns the server at an address.
func (r *router) open(ctx context.Context, addr string) (Server, error) {
	r.mu.Lock()
	s, ok := r.servers[addr]
	r.mu.Unlock()
	if ok {
		return s, nil
	}
	s, err := r.topology.open(ctx, addr)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if other, ok := r.servers[addr]; ok || r.ctx.Err() != nil {
		s.Close()
		if !ok {
			return nil, driver.ErrClosed
		}
		return other, nil
	}
	r.servers[addr] = s
	return s, nil
}

// retireServers closes servers that are no longer in the table, once they have had time to answer.
// The mutex is held.
func (r *router) retireServers() {
	addrs := r.table.addrs()
	for addr, s := range r.servers {
		if !slices.Contains(addrs, addr) {
			time.AfterFunc(retiredGrace, func() { r.drop(addr, s) })
		}
	}
}

func (r *router) drop(addr string, s Server) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.servers[addr] == s && !slices.Contains(r.table.addrs(), addr) {
		delete(r.servers, addr)
		s.Close()
	}
}

func (r *router) Slot(key string) int {
	if r.topology.slotted {
		return SlotOf(key)
	}
	return 0
}

func (r *router) Refresh() { r.refresh() }

func (r *router) Slotted() bool { return r.topology.slotted }

func (r *router) Name() string { return r.topology.name }

func (r *router) Close() {
	r.mu.Lock()
	r.cancel()
	servers := r.servers
	r.servers = map[string]Server{}
	r.mu.Unlock()
	for _, s := range servers {
		s.Close()
	}
	if r.topology.close != nil {
		r.topology.close()
	}
	r.wg.Wait()
}

var errNoSlots = errors.New("no server has any slot")
