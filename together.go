package distlock

import (
	"context"
	"errors"
	"time"

	"github.com/distlock/distlock/driver"
)

// bunch is an attempt to take several locks of one client in one step.
type bunch struct {
	c   *Client
	op  string
	ctx context.Context
	all []*contender
}

// tryTogether takes all locks in one step, or none. driver.ErrSkip: they have to be taken
// one after the other.
func (m *MultiLock) tryTogether(ctx context.Context, op string) (*MultiLease, error) {
	t, ok := m.locks[0].c.backend.(driver.Together)
	if !ok || len(m.locks) == 1 {
		return nil, driver.ErrSkip
	}
	b := &bunch{c: m.locks[0].c, op: op, ctx: ctx}
	b.c.tasks.begin()
	defer b.c.tasks.end()
	for _, l := range m.locks {
		if l.c != b.c || l.s.reentrant && FromContext(ctx) != nil {
			return nil, driver.ErrSkip
		}
	}
	for _, l := range m.locks {
		if err := b.enter(l); err != nil {
			b.leave(false)
			return nil, err
		}
	}
	return b.attempt(t)
}

// enter prepares for one of the locks.
func (b *bunch) enter(l lock) error {
	if err := l.check(b.ctx, b.op); err != nil {
		return err
	}
	k, err := l.besideLine(b.ctx, b.op)
	if err == nil {
		b.all = append(b.all, &k)
	}
	return err
}

// leave gives up all; unsure says that the backend may have granted them.
func (b *bunch) leave(unsure bool) {
	for _, k := range b.all {
		k.unsure = unsure
		k.pass()
	}
}

// attempt asks the backend once.
func (b *bunch) attempt(t driver.Together) (*MultiLease, error) {
	lost := make([]*news, len(b.all))
	requests := make([]driver.Request, len(b.all))
	for i, k := range b.all {
		k.owner = driver.NewOwner()
		lost[i] = &news{}
		requests[i] = k.request(lost[i].tell)
	}
	if err := b.c.releaser.room(); err != nil {
		return nil, b.refused(err)
	}
	ctx, cancel := b.c.calls.context(b.ctx, b.callTimeout())
	start := b.c.now()
	grants, err := t.AcquireAll(ctx, requests)
	cancel()
	if err == nil {
		err = b.check(start, grants)
	}
	if err != nil {
		return nil, b.refused(err)
	}
	return b.granted(lost, start, grants)
}

func (b *bunch) callTimeout() time.Duration {
	d := b.all[0].s.callTimeout
	for _, k := range b.all {
		d = min(d, k.s.callTimeout)
	}
	return d
}

// check says why grants are of no use.
func (b *bunch) check(start instant, grants []driver.Grant) error {
	if len(grants) != len(b.all) {
		return errNoAnswer
	}
	now := b.c.now()
	for i, k := range b.all {
		if now >= start+k.s.trusted(grants[i])-k.s.margin {
			return errLate
		}
	}
	return b.ctx.Err()
}

// refused leaves all locks, and says why none was taken. What may have been taken for all
// that is released in the background.
func (b *bunch) refused(err error) error {
	held, refused := errors.AsType[*HeldError](err)
	skipped := errors.Is(err, driver.ErrSkip)
	b.leave(!refused && !skipped && !driver.Final(err) && !errors.Is(err, driver.ErrUnsent))
	name := ""
	if refused {
		name = held.Name
	}
	switch {
	case skipped:
		return driver.ErrSkip
	case b.c.isClosed():
		return fail(b.op, name, ErrClosed)
	case b.ctx.Err() == nil || driver.Final(err):
		return fail(b.op, name, err)
	case !refused:
		err = errNoAnswer
	}
	return cutShort(b.op, name, b.ctx, err)
}

// granted makes the leases, each under the context of the one before.
func (b *bunch) granted(lost []*news, start instant, grants []driver.Grant) (*MultiLease, error) {
	m := &MultiLease{}
	now := b.c.now()
	for i, k := range b.all {
		if i > 0 {
			k.ctx = joined{m.Context()}
		}
		lease, err := k.granted(lost[i], start, now, grants[i])
		if err != nil {
			// The client is closing, and has released the leases that were made.
			b.all = b.all[i:]
			b.leave(true)
			return nil, fail(b.op, k.s.name, err)
		}
		lease.recordStack()
		m.leases = append(m.leases, lease)
	}
	return m, nil
}
