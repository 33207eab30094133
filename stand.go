package distlock

import (
	"cmp"
	"errors"
)

// standInLine waits for a lease or for the role of the contender.
func (k *contender) standInLine() (*Lease, error) {
	sh := k.c.shard(k.s.name)
	sh.mu.Lock()
	g := sh.gate(k.c, k.s.name)
	k.g = g
	if !g.contender && g.held == nil && g.line.head == nil {
		if k.s.mode.Alone() {
			g.contender = true
			g.refusal = nil
			k.yield, k.listen = g.yield(k.start)
			sh.mu.Unlock()
			return k.contend()
		}
		g.tries++
		sh.mu.Unlock()
		return k.shareOrStand()
	}
	w := k.queue(g)
	sh.mu.Unlock()
	return k.await(w)
}

// shareOrStand asks beside the line and stands in it only if refused: holds that
// share need no order among themselves.
func (k *contender) shareOrStand() (*Lease, error) {
	k.once = true
	lease, err := k.contend()
	if lease != nil || k.ctx.Err() != nil || !errors.Is(err, ErrHeld) && !errors.Is(err, ErrUnavailable) {
		return lease, err
	}
	k.once = false
	sh := k.c.shard(k.s.name)
	sh.mu.Lock()
	w := k.queue(sh.gate(k.c, k.s.name))
	k.g.promote()
	sh.mu.Unlock()
	return k.await(w)
}

// queue takes the last place in g's line. sh.mu is held.
func (k *contender) queue(g *gate) *waiter {
	k.g = g
	w := g.sh.waiter(k.ctx, k.s)
	g.line.push(w)
	return w
}

// await takes what is delivered to w, or leaves the line when ctx ends.
func (k *contender) await(w *waiter) (*Lease, error) {
	k.tellWaiting()
	if k.c.isClosed() {
		// Close may have looked at the line before w stood in it.
		return nil, k.leaveLine(w, fail(k.op, k.s.name, ErrClosed))
	}
	var d delivery
	select {
	case d = <-w.ch:
	case <-k.ctx.Done():
		return nil, k.leaveLine(w, nil)
	}
	k.g.sh.mu.Lock()
	k.g.sh.recycle(w)
	k.g.sh.mu.Unlock()
	return k.take(d)
}

// take goes on with what was delivered. Whoever's ctx has ended declines.
func (k *contender) take(d delivery) (*Lease, error) {
	switch {
	case d.err != nil:
		return nil, k.giveUpWaiting(fail(k.op, k.s.name, d.err))
	case k.ctx.Err() != nil:
		k.decline(d)
		return nil, k.giveUpWaiting(k.cut())
	case d.lease != nil:
		if told := k.c.watch.HandedOn; told != nil {
			told(Event{Name: k.s.name, Mode: k.s.mode, Owner: d.lease.h.owner, Fence: d.lease.Fence(), Waited: k.c.now() - k.start})
		}
		return d.lease, nil
	}
	k.role = d.role
	defer k.c.tasks.End() // begun by whoever delivered it
	return k.contend()
}

// leaveLine leaves without a trace, also if something was delivered meanwhile.
func (k *contender) leaveLine(w *waiter, err error) error {
	sh := k.g.sh
	sh.mu.Lock()
	if err == nil {
		k.last = k.g.whyWaiting()
	}
	if w.queued {
		k.g.line.remove(w)
		k.g.promote()
	} else {
		d := <-w.ch
		sh.mu.Unlock()
		k.decline(d)
		sh.mu.Lock()
	}
	sh.recycle(w)
	sh.mu.Unlock()
	if err == nil {
		err = k.cut()
	}
	return k.giveUpWaiting(err)
}

// decline passes on what was delivered to someone who has gone.
func (k *contender) decline(d delivery) {
	switch {
	case d.err != nil:
	case d.lease != nil:
		k.c.tasks.Begin()
		go func() {
			defer k.c.tasks.End()
			// Its error, if any, is told to the observer.
			_ = d.lease.Unlock(k.ctx)
		}()
	default:
		last := cmp.Or(k.last, d.role.last)
		k.role = d.role
		k.pass()
		k.c.tasks.End()
		k.last = last
	}
}
