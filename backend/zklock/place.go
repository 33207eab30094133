package zklock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/zk"
)

// place is what an Owner has at the servers: a hold, a place in line, or what an attempt
// without an answer may have left. It belongs to the session that it began in.
//
// The core makes one call at a time for an Owner: so only what news of the servers also
// changes is guarded.
type place struct {
	s       *session
	owner   string
	name    string
	path    string // of the lock
	mode    driver.Mode
	node    string // that which holds or stands in line; empty: none yet
	lock    string // a semaphore's: that in its line
	doubt   bool   // there may be nodes that are not known
	data    []byte // of node
	version int32  // of data, as it was seen last
	limit   int

	mu       sync.Mutex
	granted  bool
	left     bool // it was released, or is being
	gone     bool // its node is known to be gone, or its session is
	watched  bool // the node's end will be told
	held     string
	revoked  bool // the holder was told that somebody asks for the lock
	onLost   func()
	onRevoke func()
}

// placeOf is an Owner's place in a lock, if its session lives.
func (b *Backend) placeOf(h driver.Hold) *place {
	b.mu.Lock()
	defer b.mu.Unlock()
	if p := b.places[h.Owner]; p != nil && p.name == h.Name && !p.s.over() {
		return p
	}
	return nil
}

// enter makes a place before anything of it is at the servers.
func (b *Backend) enter(s *session, r driver.Request) (*place, error) {
	p := &place{
		s: s, owner: r.Owner, name: r.Name, path: pathOf(r.Name), mode: r.Mode, limit: r.Limit,
		data: writeNote(r.Meta, r.OnRevoke != nil),
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil, driver.ErrClosed
	}
	b.places[r.Owner] = p
	s.places++
	return p, nil
}

// drop forgets a place of which nothing is left at the servers.
func (b *Backend) drop(p *place) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.places[p.owner] == p {
		delete(b.places, p.owner)
		p.s.places--
		p.s.rest()
	}
}

// holds reports whether the place is a hold, as far as is known here.
func (p *place) holds() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.granted && !p.left && !p.gone
}

// end is for a place whose nodes are gone. It tells the holder once.
func (p *place) end(tell bool) {
	p.mu.Lock()
	tell = tell && p.granted && !p.left && !p.gone && p.onLost != nil
	p.gone = true
	onLost := p.onLost
	p.mu.Unlock()
	if tell {
		onLost()
	}
}

// hold makes the place a hold, for a request that was granted. False: it is gone already.
func (p *place) hold(r driver.Request) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.granted, p.held, p.onLost, p.onRevoke = true, p.node, r.OnLost, r.OnRevoke
	return !p.gone
}

// leave says that the end of the node will be no loss.
func (p *place) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.left = true
}

// dir is where the nodes of the mode are.
func (p *place) dir() string {
	if p.mode == driver.Counted {
		return p.path + "/" + leasesNode
	}
	return p.path
}

// queue is where a semaphore's line is.
func (p *place) queue() string { return p.path + "/" + locksNode }

// prefix begins the path of the place's node; the server adds a number.
func (p *place) prefix() string {
	name := p.dir() + "/" + prefixOf(p.owner)
	if p.mode == driver.Counted {
		name += limitPart(p.limit)
	}
	return name + kindOf(p.mode).base()
}

// base is the last part of a path.
func base(path string) string { return path[strings.LastIndexByte(path, '/')+1:] }

// create makes a node of the place and lists its siblings, in one round trip. Missing
// parents are made. Unless the error says that nothing was made, the place is in doubt.
func (p *place) create(ctx context.Context, prefix string, data []byte) (zk.Created, error) {
	dir := prefix[:strings.LastIndexByte(prefix, '/')]
	for {
		e, err := p.s.conn.CreateAndList(ctx, prefix, data)
		switch {
		case err == nil:
			return e, nil
		case errors.Is(err, zk.ErrNoNode) && e.Path == "":
			// Between this and the next attempt it may be removed again, if it is empty.
			if err = p.s.makeContainer(ctx, dir); err == nil {
				continue
			}
			return e, err
		}
		p.doubt = !nothingDone(err) || e.Path != ""
		return e, err
	}
}

// makeContainer makes a node that the servers remove when it has become empty, and
// those above it.
func (s *session) makeContainer(ctx context.Context, path string) error {
	for {
		err := s.makeOne(ctx, path)
		switch i := strings.LastIndexByte(path, '/'); {
		case err == nil, errors.Is(err, zk.ErrNodeExists):
			return nil
		case errors.Is(err, zk.ErrNoNode) && i > 0:
			if err := s.makeContainer(ctx, path[:i]); err != nil {
				return err
			}
		case errors.Is(err, zk.ErrNoNode):
			return fmt.Errorf("%w: %w", driver.ErrInvalid, zk.ErrNoChroot)
		default:
			return err
		}
	}
}

func (s *session) makeOne(ctx context.Context, path string) error {
	mode := zk.Container
	if s.b.persistent.Load() {
		mode = zk.Persistent
	}
	_, _, err := s.conn.Create(ctx, path, nil, mode)
	if mode == zk.Container && errors.Is(err, zk.ErrUnimplemented) {
		s.b.persistent.Store(true)
		return s.makeOne(ctx, path)
	}
	return err
}

// settle finds out what an attempt without an answer has left. Nodes with the Owner's
// name that belong to an older session are no place: they are deleted.
func (p *place) settle(ctx context.Context) error {
	if !p.doubt {
		return nil
	}
	node, k, err := p.find(ctx, p.dir())
	if err != nil {
		return err
	}
	if p.node = node; node != "" {
		p.mode = k.mode() // a downgrade may have been done
	}
	if p.mode == driver.Counted {
		if p.lock, _, err = p.find(ctx, p.queue()); err != nil {
			return err
		}
	}
	p.doubt = false
	p.s.b.stays(p)
	return nil
}

// find is the path of the Owner's node in dir; empty if there is none. A create that was
// sent to a server which the session has left may be on its way still: the leader is asked
// behind it.
func (p *place) find(ctx context.Context, dir string) (path string, k kind, err error) {
	f, _, err := p.s.listNow(ctx, dir)
	if err != nil {
		return "", 0, err
	}
	for _, n := range f.row.of(p.owner) {
		one := dir + "/" + n.name
		switch _, stat, err := p.s.conn.Get(ctx, one); {
		case errors.Is(err, zk.ErrNoNode):
		case err != nil:
			return "", 0, err
		case stat.EphemeralOwner == p.s.conn.Session():
			path, k = one, n.kind
		default:
			if _, err := p.s.removeAny(ctx, one); err != nil {
				return "", 0, err
			}
		}
	}
	return path, k, nil
}

// remove deletes a node of the session, which goes with it; false: it was not there.
func (s *session) remove(ctx context.Context, path string) (bool, error) {
	had, err := s.removeAny(ctx, path)
	if sessionOver(err) {
		return false, nil
	}
	return had, err
}

// removeAny deletes a node of any session; false: it was not there.
func (s *session) removeAny(ctx context.Context, path string) (bool, error) {
	err := s.conn.Delete(ctx, path, -1)
	if errors.Is(err, zk.ErrNoNode) {
		return false, nil
	}
	return err == nil, err
}

// clear deletes all nodes of a place; false: there was none that holds or stands in line.
func (p *place) clear(ctx context.Context) (had bool, err error) {
	if err := p.settle(ctx); err != nil && !sessionOver(err) {
		return false, err
	}
	for _, node := range []*string{&p.node, &p.lock} {
		if *node == "" {
			continue
		}
		was, err := p.s.remove(ctx, *node)
		if err != nil {
			return had, err
		}
		had, *node = had || was, ""
	}
	return had, nil
}
