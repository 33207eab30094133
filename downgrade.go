package distlock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/renew"
)

// Downgrade turns a lease that holds an RWMutex for writing into one that holds it for reading,
// under a greater fence. No writer gets the lock in between. It returns ErrInvalid if the lease
// does not hold for writing or was re-entered, and ErrUnsupported if the backend can't downgrade.
// If the backend gives no answer until ctx or the lease ends, the lease is lost, since its mode is
// not known.
func (l *Lease) Downgrade(ctx context.Context) error {
	const op = "downgrade"
	if err := l.Err(); err != nil {
		return &Error{Op: op, Name: l.Name(), Kind: kindOf(err), Err: err}
	}
	if err := l.h.downgrade(ctx, l.core()); err != nil {
		if ended := l.Err(); errors.Is(ended, ErrReleased) || errors.Is(ended, ErrClosed) {
			err = ended // meanwhile
		}
		return fail(op, l.Name(), err)
	}
	return nil
}

// downgrade turns a Write hold into a Read hold.
func (h *hold) downgrade(ctx context.Context, l *Lease) error {
	if !h.env.caps.Downgrade {
		return fmt.Errorf("%w: %s can't downgrade", ErrUnsupported, h.env.caps.Name)
	}
	reports, err := h.changeToReader(ctx, l)
	for _, report := range reports {
		report()
	}
	return err
}

// changeToReader makes the downgrade, and returns what reports it.
func (h *hold) changeToReader(ctx context.Context, l *Lease) (reports []func(), err error) {
	if err := h.beginDowngrade(l); err != nil {
		return nil, err
	}
	defer h.endDowngrade()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	reserved, err := h.env.watchdog.Reserve(ctx, stop, &h.life)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, h.life.Trust()-h.env.now())
	defer cancel()
	start, grant, err := h.requestDowngrade(ctx)
	before, changed := Event{}, false
	if err == nil {
		before, changed = h.becomeReader(l, grant)
	}
	if changed {
		reserved.End(start, h.s.trusted(grant))
		reports = append(reports, func() { emit(h.env.observer.Downgraded, before, nil) })
		if h.env.now() < h.life.Trust() {
			return reports, nil
		}
		err = renew.ErrDeadline
	} else {
		reserved.End(0, 0)
	}
	if driver.Final(err) {
		return nil, err // nothing has changed
	}
	err = cmp.Or(err, ErrLost)
	reports = append(reports, h.Lose(err, true)) // it may be back, even if the backend has said that it was gone
	h.settle()                                   // the backend may have it as a reader by now
	if !errors.Is(err, ErrLost) {
		err = fmt.Errorf("%w: %w", ErrLost, err)
	}
	return reports, err
}

// beginDowngrade keeps the hold, until endDowngrade, from being handed off or entered for writing.
func (h *hold) beginDowngrade(l *Lease) error {
	h.sh.mu.Lock()
	defer h.sh.mu.Unlock()
	switch {
	case !h.state.live():
		return ErrLost
	case h.mode != Write || len(h.nested) > 0 || h.lease != l || h.state == downgrading:
		return invalid("only a lease that holds for writing and was not re-entered can be downgraded")
	}
	h.state, h.leftMode = downgrading, Read
	return nil
}

func (h *hold) endDowngrade() {
	h.sh.mu.Lock()
	defer h.sh.mu.Unlock()
	if h.state == downgrading {
		h.state, h.leftMode = held, h.mode
	}
}

func (h *hold) requestDowngrade(ctx context.Context) (start instant, grant driver.Grant, err error) {
	r := driver.Request{Hold: h.Request(h.s.terms.TTL), Fixed: h.s.terms.Fixed, Fences: 1, Meta: h.s.meta, OnLost: h.signalGone}
	r.Mode = Read
	if h.s.revoked != nil && h.env.caps.Revocable.Has(Read) {
		r.OnRevoke = (&revocation{h: h}).notify
	}
	unknown := false
	err = h.retry(ctx, math.MaxInt, func() (bool, error) {
		start = h.env.now()
		call := h.env.calls.context(ctx, h.s.terms.CallTimeout)
		defer call.End()
		grant, err = h.env.backend.Acquire(call, r)
		switch {
		case errors.Is(err, driver.ErrSpent):
			return true, fmt.Errorf("%w: %v", ErrLost, err)
		case errors.Is(err, ErrHeld):
			// No other Owner can hold beside a writer. A grant after this would be a new hold.
			return true, fmt.Errorf("%w: %v", ErrLost, err)
		case driver.Final(err) && unknown:
			// A try without an answer may have made it a reader's.
			return true, fmt.Errorf("%w: %v", ErrLost, err)
		}
		unknown = unknown || err != nil && !errors.Is(err, driver.ErrUnsent)
		return err == nil || errors.Is(err, ErrLost) || driver.Final(err), err
	})
	return start, grant, err
}

// becomeReader makes the hold one for reading, and returns its event from before. It leaves the queue, so that other
// readers can be granted beside it. It reports false if the hold ended meanwhile.
func (h *hold) becomeReader(l *Lease, grant driver.Grant) (before Event, changed bool) {
	h.sh.mu.Lock()
	if !h.state.live() {
		h.sh.mu.Unlock()
		return before, false
	}
	before = h.event(l, h.env.now())
	l.mu.Lock()
	l.fence = grant.Fence
	l.mu.Unlock()
	h.mode = Read
	left := h.queue
	h.queue = nil
	h.sh.mu.Unlock()
	left.giveBack(h)
	return before, true
}
