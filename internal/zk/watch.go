package zk

import "slices"

// EventType is what happened to a node.
type EventType int32

const (
	EventSession         EventType = -1 // the session is over, and with it the watch
	EventDeleted         EventType = 2
	EventDataChanged     EventType = 3
	EventChildrenChanged EventType = 4
)

// Event is what a watch tells.
type Event struct {
	Type EventType
	Path string
	Err  error // why the session is over
}

// kind is what of a node is watched.
type kind int32

const (
	kindChildren kind = 1 // as removeWatches calls them
	kindData     kind = 2
)

// spot is what the server has one watch for.
type spot struct {
	path string // as the server knows it
	kind kind
}

// watching is all that goes on here at one spot.
type watching struct {
	list   []*Watch
	asking int  // calls under way that ask for the server's watch
	set    bool // the server has a watch, as far as is known
}

// Watch tells once that something has happened to a node.
type Watch struct {
	c    *Conn
	spot spot
	f    func(Event)
}

// Cancel ends the watch, at the server too if it was the only one here. It doesn't wait
// for anything: f may still be running, or about to.
func (w *Watch) Cancel() {
	w.c.mu.Lock()
	defer w.c.mu.Unlock()
	s := w.c.watches[w.spot]
	if s == nil {
		return
	}
	s.list = slices.DeleteFunc(s.list, func(other *Watch) bool { return other == w })
	w.c.tidy(w.spot, s)
}

// watching is the entry of a spot. c.mu is held, as in all that follow but happened.
func (c *Conn) watching(at spot) *watching {
	s := c.watches[at]
	if s == nil {
		s = &watching{}
		c.watches[at] = s
	}
	return s
}

// settleWatch is for a call that has ended: set says whether the server now has its
// watch, wanted whether somebody here still does.
func (c *Conn) settleWatch(k *call, set, wanted bool) {
	if k.watch == nil {
		return
	}
	s := c.watching(k.watch.spot)
	s.asking--
	s.set = s.set || set
	if wanted {
		s.list = append(s.list, k.watch)
	}
	c.tidy(k.watch.spot, s)
}

// tidy removes a watch that nobody here has. One that is being asked for is left alone:
// the server can't tell it from the other.
func (c *Conn) tidy(at spot, s *watching) {
	if len(s.list) > 0 || s.asking > 0 {
		return
	}
	delete(c.watches, at)
	if s.set && c.err == nil {
		c.queue = append(c.queue, unwatch(at))
		c.wake()
	}
}

func unwatch(at spot) *call {
	k := newCall(opRemoveWatches, "")
	k.bound = true
	k.frame = appendInt(appendText(k.frame, at.path), int32(at.kind))
	return k
}

// happened tells those who watch what the server says.
func (c *Conn) happened(d *decoder) error {
	e := Event{Type: EventType(d.int())}
	d.int() // the state of the connection
	full := d.text()
	if d.bad {
		return errProtocol
	}
	e.Path = c.cfg.below(full)
	for _, w := range c.take(e.Type, full) {
		w.f(e)
	}
	return nil
}

// take removes those who watch what has happened.
func (c *Conn) take(what EventType, path string) []*Watch {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch what {
	case EventDeleted:
		return append(c.takeAt(spot{path, kindData}), c.takeAt(spot{path, kindChildren})...)
	case EventDataChanged:
		return c.takeAt(spot{path, kindData})
	case EventChildrenChanged:
		return c.takeAt(spot{path, kindChildren})
	}
	return nil
}

func (c *Conn) takeAt(at spot) []*Watch {
	s := c.watches[at]
	if s == nil {
		return nil
	}
	list := s.list
	s.list, s.set = nil, false
	c.tidy(at, s)
	return list
}

// allWatches removes all.
func (c *Conn) allWatches() (all []*Watch) {
	for at := range c.watches {
		all = append(all, c.takeAt(at)...)
	}
	return all
}

// maxPaths is how long the paths may be that one request sets watches for.
const maxPaths = 128 << 10

// renewWatches asks a new connection's server for all watches. It fires those to which
// something has happened since the last transaction that was heard of.
func (c *Conn) renewWatches() []*call {
	var list []*call
	var data, children []string
	size := 0
	flush := func() {
		if size > 0 {
			list = append(list, c.setWatches(data, children))
		}
		data, children, size = nil, nil, 0
	}
	for at, s := range c.watches {
		if s.set = len(s.list) > 0; !s.set {
			continue
		}
		if at.kind == kindData {
			data = append(data, at.path)
		} else {
			children = append(children, at.path)
		}
		if size += len(at.path) + 4; size >= min(maxPaths, c.cfg.MaxRequest/2) {
			flush()
		}
	}
	flush()
	return list
}

func (c *Conn) setWatches(data, children []string) *call {
	k := newCall(opSetWatches, "")
	k.xid, k.bound = xidSetWatches, true
	k.frame = appendLong(k.frame, c.zxid)
	k.frame = appendTexts(k.frame, data)
	k.frame = appendTexts(k.frame, nil) // nodes that must not exist
	k.frame = appendTexts(k.frame, children)
	return k
}
