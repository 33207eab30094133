package distlock

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/renew"
)

// Attach returns a lease on a hold that another process or connection has taken, with the name and
// the Lease.Owner of that hold. It is for work that goes on in another process; see Lease.Detach.
//
// The lease is trusted from the first renewal on, which Attach makes for the TTL of opts or of the
// Client. It is renewed like others, and its Unlock releases the hold. Options about waiting,
// hand-off and metadata have no effect; MaxHold and MinHold count from Attach. The lease's mode is
// the hold's mode. Its fence is the first one of the hold, as Inspect shows it, and 0 if the
// backend does not show it. To have exactly the fence of the last lease, take the lock with
// WithoutHandoff.
//
// Attach returns ErrLost if the Owner does not hold the lock; ErrUnavailable if there was no answer,
// and then the hold is left as it is; ErrUnsupported if holds end with their connection
// (Caps.Detached) or can't be inspected; ErrInvalid if this Client has the hold already. If two
// programs have a lease on one hold, both trust it, and the first Unlock ends it for both. All
// others are kept out as before.
//
// The Owner is a capability: any program that knows it, and may use the backend, can release the hold.
func (c *Client) Attach(ctx context.Context, name, owner string, opts ...LockOption) (*Lease, error) {
	lease, err := c.attach(ctx, name, owner, opts)
	if err != nil {
		return nil, fail("attach", name, err)
	}
	lease.recordStack()
	return lease, nil
}

func (c *Client) attach(ctx context.Context, name, owner string, opts []LockOption) (*Lease, error) {
	if err := c.checkAttach(ctx, owner); err != nil {
		return nil, err
	}
	c.tasks.Begin()
	defer c.tasks.End()
	if _, busy := c.attached.LoadOrStore(owner, (*hold)(nil)); busy {
		return nil, errAttached
	}
	lease, err := c.attachHold(ctx, name, owner, opts)
	if err != nil {
		c.attached.Delete(owner)
	}
	return lease, err
}

var errAttached = invalid("this client has a lease on the hold already, or attaches it")

func (c *Client) attachHold(ctx context.Context, name, owner string, opts []LockOption) (*Lease, error) {
	if c.has(owner) {
		return nil, errAttached
	}
	h, err := c.findHold(ctx, name, owner, opts)
	if err != nil {
		return nil, err
	}
	return h.attach(ctx)
}

func (c *Client) checkAttach(ctx context.Context, owner string) error {
	switch {
	case c.isClosed():
		return ErrClosed
	case !c.caps.Detached:
		return c.notDetached()
	case owner == "":
		return invalid("the owner is empty; want the Owner of the lease that took the lock")
	}
	return ctx.Err()
}

func (e *env) notDetached() error {
	return fmt.Errorf("%w: a hold at %s ends with the connection that took it", ErrUnsupported, e.caps.Name)
}

// has reports whether the client has a hold of owner.
func (c *Client) has(owner string) bool {
	return c.watchdog.Find(func(o renew.Holder) bool { return o.(*hold).owner == owner }) != nil
}

// findHold inspects the lock, and returns the hold of owner, which is not proven yet.
func (c *Client) findHold(ctx context.Context, name, owner string, opts []LockOption) (*hold, error) {
	info, err := c.Inspect(ctx, name)
	if err != nil {
		return nil, err
	}
	found, ok := holderOf(info, owner)
	switch {
	case !ok:
		return nil, ErrLost
	case found.Foreign:
		return nil, invalid("another program has taken the lock, in a form that can't be renewed")
	}
	s := c.newSpec(name, found.Mode, info.Limit, opts)
	switch {
	case s.bad != nil:
		return nil, s.bad
	case s.revoked != nil:
		return nil, fmt.Errorf("%w: an attached lease can't be Revocable: the requests go to the process that took the lock", ErrUnsupported)
	}
	h := &hold{env: &c.env, s: s, sh: c.queues.shard(name), owner: owner, mode: found.Mode, leftMode: found.Mode, next: found.Fence, last: found.Fence}
	return h, nil
}

// holderOf returns the holder with an Owner. A server hides the Owners from clients that may not break
// locks: then holders have no Owner. All of them have one mode, and if there is one only, it is the holder
// in question, or the renewal fails: its Owner was granted before Attach was called.
func holderOf(info Info, owner string) (h Holder, ok bool) {
	hidden := func(h Holder) bool { return h.Owner == "" }
	if i := slices.IndexFunc(info.Holders, func(h Holder) bool { return h.Owner == owner }); i >= 0 {
		return info.Holders[i], true
	}
	i := slices.IndexFunc(info.Holders, hidden)
	switch {
	case i < 0:
		return h, false
	case len(info.Holders) > 1:
		return Holder{Mode: info.Holders[i].Mode}, true
	}
	return info.Holders[i], true
}

// attach proves the hold by a renewal, and makes the lease.
func (h *hold) attach(ctx context.Context) (*Lease, error) {
	call := h.env.calls.context(ctx, h.s.terms.CallTimeout)
	defer call.End()
	start := h.env.now()
	if err := renew.Answer(h.env.backend.Renew(call, []driver.Hold{h.Request(h.s.terms.TTL)}), 0); err != nil {
		return nil, err
	}
	now := h.env.now()
	if now >= start+h.s.terms.TTL-h.s.terms.Margin {
		return nil, errLate
	}
	h.state = held
	lease := h.newLease(ctx, now)
	h.env.attached.Store(h.owner, h)
	if !h.env.watchdog.Add(&h.life, h, &h.s.terms, start, h.s.terms.TTL) {
		return nil, ErrClosed
	}
	event := Event{Context: ctx, Name: h.s.name, Mode: h.mode, Owner: h.owner, Fence: lease.Fence(), Waited: now - start}
	emit(h.env.observer.Granted, event, func() { _, _ = lease.Detach(ctx) })
	h.grantReported()
	return lease, nil
}

// Detach ends the lease without releasing the lock, and returns the Owner of the hold, by which
// another process can Attach it. The hold is no longer renewed: it ends with what is left of its TTL,
// unless it is attached before. The lease's context ends with cause ErrReleased.
//
// Detach waits, until ctx ends, for a renewal in flight. It returns ErrLost if the lease is lost,
// ErrReleased after Unlock, ErrInvalid if the lock is re-entered, and ErrUnsupported if holds end
// with their connection (Caps.Detached). A lease that was not detached is held as before; what may be left
// of a lost one is released.
func (l *Lease) Detach(ctx context.Context) (owner string, err error) {
	if err = l.Err(); err == nil {
		err = l.h.detach(ctx, l)
	}
	if errors.Is(err, ErrLost) {
		_ = l.Unlock(ctx)
		l.h.settle() // a detach that met the loss has ended the lease
	}
	if err != nil {
		return "", fail("detach", l.Name(), err)
	}
	return l.h.owner, nil
}

func (h *hold) detach(ctx context.Context, l *Lease) error {
	if !h.env.caps.Detached {
		return h.env.notDetached()
	}
	h.sh.mu.Lock()
	switch {
	case len(h.leases()) > 1:
		h.sh.mu.Unlock()
		return invalid("the lock is re-entered; unlock the inner lease first")
	case h.state == downgrading:
		h.sh.mu.Unlock()
		return invalid("a downgrade is in progress")
	}
	h.sh.mu.Unlock()
	core := l.core()
	if !core.end(ErrReleased) {
		return l.Err()
	}
	event, done := h.end(ended, ErrReleased)
	if !done {
		return h.whyEnded()
	}
	h.env.watchdog.Remove(ctx, &h.life)
	h.queue.giveBack(h)
	event.Context, event.Err = ctx, nil
	emit(h.env.observer.Released, event, nil)
	return nil
}
