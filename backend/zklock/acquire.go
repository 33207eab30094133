package zklock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/zk"
)

// maxTries bounds how often one attempt begins anew because its node or session has
// gone meanwhile.
const maxTries = 3

// Acquire makes one attempt. A request with Queue makes its node at once: one round trip
// if the lock is free. A try looks first, so as not to disturb those in line; ZooKeeper
// can't do both in one step, so that a try may be refused because of another one that is
// about to be refused.
func (b *Backend) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	err := b.checkRequest(r)
	if err != nil {
		return driver.Grant{}, err
	}
	a := &attempt{b: b, r: r, start: time.Now()}
	for range maxTries {
		var g driver.Grant
		if g, err = a.make(ctx); err == nil {
			return g, nil
		}
		if !errors.Is(err, errGone) && !sessionOver(err) {
			break
		}
	}
	return driver.Grant{}, b.fail("acquire", r.Name, err)
}

func (b *Backend) checkRequest(r driver.Request) error {
	if err := b.check(r.Hold); err != nil {
		return err
	}
	switch {
	case !isUUID(r.Owner):
		return fmt.Errorf("%w: Owner %q: want a UUID", driver.ErrInvalid, r.Owner)
	case r.TTL > b.caps.MaxTTL:
		return fmt.Errorf("%w: TTL %v: want at most %v", driver.ErrInvalid, r.TTL, b.caps.MaxTTL)
	case r.Mode == driver.Counted && r.Limit < 1:
		return fmt.Errorf("%w: a semaphore of %d permits: want at least 1", driver.ErrInvalid, r.Limit)
	}
	return nil
}

// attempt is one call of Acquire.
type attempt struct {
	b     *Backend
	r     driver.Request
	start time.Time
	p     *place
	fresh bool // the place was made by this attempt
}

func (a *attempt) make(ctx context.Context) (driver.Grant, error) {
	if err := a.place(ctx); err != nil {
		if a.p == nil {
			err = driver.Unsent(err)
		}
		return driver.Grant{}, err
	}
	g, err := a.ask(ctx)
	switch p := a.p; {
	case err == nil:
		return g, nil
	case sessionOver(err):
		p.s.outlive(ctx)
		fallthrough
	case errors.Is(err, errGone):
		p.end(true)
		a.b.drop(p)
	case a.fresh && !p.doubt && p.node == "" && p.lock == "":
		a.b.drop(p) // it came to nothing
		err = driver.Unsent(err)
	case driver.Final(a.b.fail("", "", err)) && !p.holds():
		return g, a.giveBack(ctx, err)
	}
	return g, err
}

// place is the Owner's, or a new one in a session that lives.
func (a *attempt) place(ctx context.Context) error {
	a.p, a.fresh = a.b.placeOf(a.r.Hold), false
	if a.p != nil {
		return a.p.settle(ctx)
	}
	s, err := a.b.session(ctx, a.r.TTL)
	if err != nil {
		return err
	}
	if !a.r.Queue {
		if err := a.look(ctx, s); err != nil {
			return err
		}
	}
	a.fresh = true
	a.p, err = a.b.enter(s, a.r)
	return err
}

// look finds out for a try whether the lock is free, before anything is made.
func (a *attempt) look(ctx context.Context, s *session) error {
	path, k := pathOf(a.r.Name), kindOf(a.r.Mode)
	if k == leaseKind {
		return a.lookForPermit(ctx, s, path)
	}
	f, _, err := s.listNow(ctx, path)
	if err != nil {
		return err
	}
	if n, is := f.row.stranger(len(f.row), k); is {
		return conflict(path, n)
	}
	if _, is := f.row.blocker(len(f.row), k); is {
		return heldBy(f.row[0])
	}
	return nil
}

// list reads what is below a path, which need not exist.
func (s *session) list(ctx context.Context, path string) (family, zk.Stat, error) {
	children, stat, err := s.conn.Children(ctx, path)
	if errors.Is(err, zk.ErrNoNode) {
		err = nil
	}
	return readFamily(children), stat, err
}

// listNow is list with all that was done anywhere before: a server may be behind.
func (s *session) listNow(ctx context.Context, path string) (family, zk.Stat, error) {
	children, stat, err := s.conn.SyncAndList(ctx, path)
	if errors.Is(err, zk.ErrNoNode) {
		err = nil
	}
	return readFamily(children), stat, err
}

// relist lists the siblings of a node of the place: if one is in the way, once more, since
// it may be gone, and the server be behind.
func (p *place) relist(ctx context.Context, dir, path string, k kind) (family, zk.Stat, error) {
	f, stat, err := p.s.list(ctx, dir)
	if me := f.row.index(base(path)); err == nil && me >= 0 {
		if _, is := f.row.blocker(me, k); is {
			return p.s.listNow(ctx, dir)
		}
	}
	return f, stat, err
}

// heldBy is the refusal because of those nodes.
func heldBy(nodes ...node) *driver.HeldError {
	e := &driver.HeldError{}
	for _, n := range nodes {
		e.Holders = append(e.Holders, driver.Holder{Owner: n.owner, Mode: n.kind.mode(), Held: -1, Left: -1})
	}
	return e
}

// ask brings the place to a grant or a refusal.
func (a *attempt) ask(ctx context.Context) (driver.Grant, error) {
	p := a.p
	switch {
	case p.holds() && p.node == "":
		return driver.Grant{}, a.lost() // while it was to become another
	case p.holds() && p.mode == driver.Write && a.r.Mode == driver.Read:
		return a.downgrade(ctx)
	case p.mode != a.r.Mode:
		return driver.Grant{}, fmt.Errorf("%w: Owner has a place as %v already", driver.ErrInvalid, p.mode)
	case p.holds():
		return a.again(ctx)
	case p.mode == driver.Counted:
		return a.permit(ctx)
	}
	return a.stand(ctx)
}

// stand makes the node, or looks at it again, and is granted if nobody is in the way.
func (a *attempt) stand(ctx context.Context) (driver.Grant, error) {
	p, k := a.p, kindOf(a.p.mode)
	var f family
	var parent zk.Stat
	if p.node == "" {
		e, err := p.create(ctx, p.prefix(), p.data)
		if err != nil {
			return driver.Grant{}, err
		}
		p.node, f, parent = e.Path, readFamily(e.Children), e.Parent
	} else {
		var err error
		if f, parent, err = p.relist(ctx, p.path, p.node, k); err != nil {
			return driver.Grant{}, err
		}
	}
	me, err := p.among(f.row, p.node)
	if err != nil {
		return driver.Grant{}, err
	}
	if n, is := f.row.stranger(me, k); is {
		return driver.Grant{}, conflict(p.path, n)
	}
	if _, is := f.row.blocker(me, k); is {
		return driver.Grant{}, a.refuse(ctx, f.row[0])
	}
	if f.locks || f.leases {
		if err := p.checkPermits(ctx); err != nil {
			return driver.Grant{}, err
		}
	}
	return a.grant(uint64(parent.Pzxid), f.row.waits(me, k))
}

// among is the index of a node of the place. Numbers that are used up are refused.
func (p *place) among(r row, path string) (int, error) {
	me := r.index(base(path))
	if me < 0 {
		return 0, errGone
	}
	for _, n := range r {
		if n.usedUp() {
			return 0, overflow(path[:strings.LastIndexByte(path, '/')], n)
		}
	}
	return me, nil
}

// refuse is for a place behind others. A try leaves nothing, unless it had a place before.
func (a *attempt) refuse(ctx context.Context, holders ...node) error {
	held := heldBy(holders...)
	if a.r.Queue || !a.fresh {
		a.b.rearm(a.r.Owner)
		return held
	}
	return a.giveBack(ctx, held)
}

// giveBack deletes what the attempt has made, and returns why; or another error if that
// is not certain to be done.
func (a *attempt) giveBack(ctx context.Context, why error) error {
	if _, err := a.p.clear(ctx); err != nil {
		return fmt.Errorf("giving a place back: %w", err)
	}
	a.b.drop(a.p)
	return why
}

// grant is for a place that holds. All it says is as of the answers it was made from.
func (a *attempt) grant(fence uint64, queued bool) (driver.Grant, error) {
	p := a.p
	ttl := p.s.conn.Deadline().Sub(a.start)
	if ttl <= 0 {
		return driver.Grant{}, errUnproven
	}
	if !p.hold(a.r) {
		return driver.Grant{}, errGone
	}
	a.b.guard(p)
	return driver.Grant{Fence: fence, Fences: 1, Queued: queued, TTL: ttl}, nil
}
