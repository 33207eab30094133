package zklock

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/zk"
)

// Watch watches the nodes whose end may let the Owner in: that before its own, as one who
// is next in line, and its own, which somebody may delete. An Owner without a place waits
// for the line to be empty. After a signal it is armed again when the Owner has been
// refused once more, and soon in any case.
func (b *Backend) Watch(ctx context.Context, r driver.Request) (driver.Watch, error) {
	if err := b.checkRequest(r); err != nil {
		return driver.Watch{}, err
	}
	w := &watch{b: b, r: r, ready: make(chan struct{}, 1)}
	if err := w.arm(ctx); err != nil {
		w.close()
		return driver.Watch{}, b.fail("watch", r.Name, err)
	}
	if !b.listens(w) {
		w.close()
		return driver.Watch{}, driver.ErrClosed
	}
	return driver.Watch{Ready: w.ready, Close: w.close}, nil
}

// listens makes a watch known, unless the backend is closed.
func (b *Backend) listens(w *watch) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.closed {
		b.watches[w.r.Owner] = w
	}
	return !b.closed
}

// watch is one armed wait.
type watch struct {
	b     *Backend
	r     driver.Request
	ready chan struct{} // holds a signal that was not taken yet

	arming sync.Mutex // held by who arms

	mu     sync.Mutex
	closed bool
	fired  bool        // something has happened since it began to arm
	armed  []*zk.Watch // at the servers; none: something has happened
	timer  *time.Timer // until it is armed again
}

const (
	rearmSoon  = 5 * time.Millisecond   // if the Owner does not ask meanwhile
	rearmLater = 100 * time.Millisecond // if there was nothing to watch, or no answer
)

// signal tells the Owner to ask. It has nothing armed then.
func (w *watch) signal(rearm time.Duration) {
	w.disarm(func() {
		w.fired = true
		if !w.closed {
			w.timer = time.AfterFunc(rearm, func() { w.b.begin(w.rearm) })
		}
	})
	select {
	case w.ready <- struct{}{}:
	default:
	}
}

// disarm ends what is armed, and changes the watch with w.mu held.
func (w *watch) disarm(change func()) {
	w.mu.Lock()
	old := w.armed
	w.armed = nil
	if w.timer != nil {
		w.timer.Stop()
		w.timer = nil
	}
	change()
	w.mu.Unlock()
	for _, zw := range old {
		zw.Cancel()
	}
}

// rearm arms a watch that has nothing armed.
func (b *Backend) rearm(owner string) {
	b.mu.Lock()
	w := b.watches[owner]
	b.mu.Unlock()
	if w != nil {
		b.begin(w.rearm)
	}
}

func (w *watch) rearm() {
	if w.idle() && w.arm(w.b.life) != nil {
		w.signal(rearmLater)
	}
}

// idle: it is open, and nothing is armed.
func (w *watch) idle() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !w.closed && len(w.armed) == 0
}

func (w *watch) close() {
	w.disarm(func() { w.closed = true })
	w.b.mu.Lock()
	defer w.b.mu.Unlock()
	if w.b.watches[w.r.Owner] == w {
		delete(w.b.watches, w.r.Owner)
	}
}

// arm looks what is in the way and watches that. If nothing is it signals.
func (w *watch) arm(ctx context.Context) error {
	w.arming.Lock()
	defer w.arming.Unlock()
	v := &view{w: w, path: pathOf(w.r.Name)}
	if p := w.b.placeOf(w.r.Hold); p != nil {
		v.s, v.placed = p.s, true
	} else {
		s, err := w.b.session(ctx, w.r.TTL)
		if err != nil {
			return err
		}
		v.s = s
	}
	for {
		w.disarm(func() { w.fired = false })
		free, err := v.watch(ctx)
		switch {
		case errors.Is(err, zk.ErrNoNode):
			continue // what was to be watched is gone already
		case err != nil:
			return err
		case free:
			w.signal(rearmLater)
		}
		return nil
	}
}

// keep notes what is armed at the servers, if nothing has happened meanwhile: it may be
// this that has.
func (w *watch) keep(zw *zk.Watch) {
	w.mu.Lock()
	late := w.closed || w.fired
	if !late {
		w.armed = append(w.armed, zw)
	}
	w.mu.Unlock()
	if late {
		zw.Cancel()
	}
}

// view is how a watch sees its lock.
type view struct {
	w      *watch
	s      *session
	path   string
	placed bool // the Owner has a place
}

// watch arms what is needed, or tells that nothing is in the way.
func (v *view) watch(ctx context.Context) (free bool, err error) {
	if v.w.r.Mode == driver.Counted {
		return v.watchPermit(ctx)
	}
	return v.watchBlocker(ctx, v.path, kindOf(v.w.r.Mode))
}

// watchBlocker watches who is in the way of the Owner's node below dir, and that node.
func (v *view) watchBlocker(ctx context.Context, dir string, k kind) (free bool, err error) {
	f, _, err := v.s.list(ctx, dir)
	if err != nil {
		return false, err
	}
	me := f.row.indexOf(v.w.r.Owner)
	if me < 0 && v.placed {
		return true, nil // to ask again makes a new one
	}
	if me < 0 {
		me = len(f.row)
	}
	blocker, is := f.row.blocker(me, k)
	if !is {
		return true, nil
	}
	if err := v.watchNode(ctx, dir+"/"+blocker.name); err != nil || me == len(f.row) {
		return false, err
	}
	return false, v.watchNode(ctx, dir+"/"+f.row[me].name)
}

func (v *view) watchNode(ctx context.Context, path string) error {
	_, _, zw, err := v.s.conn.GetW(ctx, path, v.w.happened)
	if err == nil {
		v.w.keep(zw)
	}
	return err
}

// happened is told by the servers.
func (w *watch) happened(zk.Event) { w.signal(rearmSoon) }

// watchPermit watches the one before in the line; at its head, the leases.
func (v *view) watchPermit(ctx context.Context) (free bool, err error) {
	if !v.placed {
		return v.watchRoom(ctx)
	}
	if free, err = v.watchBlocker(ctx, v.path+"/"+locksNode, mutexKind); err != nil || !free {
		return false, err
	}
	leases, err := v.watchChildren(ctx, leasesNode)
	// Without a lease it is to ask again, which makes one.
	return leases.indexOf(v.w.r.Owner) < v.w.r.Limit, err
}

// watchRoom is for an Owner without a place.
func (v *view) watchRoom(ctx context.Context) (free bool, err error) {
	leases, err := v.watchChildren(ctx, leasesNode)
	if err != nil {
		return false, err
	}
	locks, err := v.watchChildren(ctx, locksNode)
	return len(leases)+len(locks) < v.w.r.Limit, err
}

// watchChildren lists what is below a part of the lock, and watches for changes. What is
// not there is empty.
func (v *view) watchChildren(ctx context.Context, part string) (row, error) {
	children, _, zw, err := v.s.conn.ChildrenW(ctx, v.path+"/"+part, v.w.happened)
	if errors.Is(err, zk.ErrNoNode) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	v.w.keep(zw)
	return readFamily(children).row, nil
}
