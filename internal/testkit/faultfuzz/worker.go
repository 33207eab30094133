package faultfuzz

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/distlock/distlock/driver"
)

// worker is one of those who want locks.
type worker struct {
	*fuzz
	who string
	b   driver.Backend
	rnd *rand.Rand
}

// belief is what a holder may believe of one grant. It is its own context, which has ended
// exactly from its deadline on.
type belief struct {
	base
	name  string
	fence uint64
	began time.Time
	until atomic.Int64 // since began
	lost  *atomic.Bool // it was told so
}

type base interface{ context.Context }

func (b *belief) Name() string             { return b.name }
func (b *belief) Fence() uint64            { return b.fence }
func (b *belief) Context() context.Context { return b }

// Err says whether the hold is believed now.
func (b *belief) Err() error {
	if b.lost.Load() || int64(time.Since(b.began)) >= b.until.Load() {
		return driver.ErrLost
	}
	return nil
}

// extend moves the deadline to ttl after since, if that is later.
func (b *belief) extend(since time.Time, ttl time.Duration) {
	b.until.Store(max(b.until.Load(), int64(since.Add(ttl).Sub(b.began))))
}

// hold is one Owner's.
type hold struct {
	driver.Request
	*belief // of the latest grant; nil before the first
	lost    atomic.Bool
	doubt   bool // an attempt had no answer, and may be granted at any moment
}

func (h *hold) believed() bool { return h.belief != nil && h.belief.Err() == nil }

// turn is the life of one Owner.
func (w *worker) turn(ctx context.Context) {
	h := &hold{Request: w.request(w.name(w.rnd))}
	h.TTL = w.life()
	h.OnLost = func() { h.lost.Store(true) }
	for tries := 1 + w.rnd.IntN(3); tries > 0 && h.belief == nil; tries-- {
		w.acquire(ctx, h)
		w.pause(w.TTL / 4)
	}
	for steps := w.rnd.IntN(16); steps > 0 && h.believed(); steps-- {
		if w.step(ctx, h) || w.rnd.IntN(5) == 0 {
			w.pause(3 * w.TTL) // beyond the end of a short life
		} else {
			w.pause(w.TTL / 10)
		}
	}
	if h.belief != nil {
		w.ledger.Leave(h.belief)
	}
	w.end(ctx, h)
}

// step is a holder's next call. One that had no answer is followed by a renewal for the long
// life: the former may land after the latter. extended says that this was so.
func (w *worker) step(ctx context.Context, h *hold) (extended bool) {
	err := error(nil)
	if w.rnd.IntN(5) == 0 {
		err = w.acquire(ctx, h)
	} else {
		err = w.renew(ctx, h, w.life())
	}
	return isUnknown(err) && h.believed() && w.renew(ctx, h, w.long) == nil
}

// isUnknown reports whether err is no answer.
func isUnknown(err error) bool {
	return err != nil && !driver.Final(err) && !errors.Is(err, driver.ErrHeld) && !errors.Is(err, driver.ErrLost)
}

// life is the short or the long one.
func (w *worker) life() time.Duration {
	if w.rnd.IntN(2) == 0 {
		return w.long
	}
	return w.TTL
}

func (w *worker) pause(most time.Duration) { time.Sleep(time.Duration(w.rnd.Int64N(int64(most)))) }

// call bounds a call, and counts it.
func (w *worker) call(ctx context.Context, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, w.TTL/4+time.Duration(w.rnd.Int64N(int64(w.TTL/2))))
	defer cancel()
	w.made.Add(1)
	err := f(ctx)
	switch {
	case errors.Is(err, driver.ErrUnsupported): // a session's TTL can't become longer
	case driver.Final(err):
		w.fault("%s: %v", w.who, err)
	case isUnknown(err):
		w.unknown.Add(1)
	}
	return err
}

func (w *worker) acquire(ctx context.Context, h *hold) error {
	before, since := w.fence(h.Request.Name), time.Now()
	var g driver.Grant
	err := w.call(ctx, func(ctx context.Context) (err error) {
		g, err = w.b.Acquire(ctx, h.Request)
		return err
	})
	w.judge(h, "asked again", err)
	if err != nil {
		h.doubt = h.doubt || !errors.Is(err, driver.ErrHeld)
		return err
	}
	w.grants.Add(1)
	w.granted(h.Request.Name, w.who, before, g)
	b := &belief{base: context.Background(), name: h.Request.Name, fence: g.Fence, began: w.began, lost: &h.lost}
	if h.belief != nil {
		w.ledger.Leave(h.belief)
		b.until.Store(h.until.Load())
	}
	b.extend(since, g.TTL)
	h.belief = b
	w.ledger.Enter(w.who, b)
	return nil
}

func (w *worker) renew(ctx context.Context, h *hold, ttl time.Duration) error {
	last := h.Hold
	last.TTL = ttl
	since := time.Now()
	err := w.call(ctx, func(ctx context.Context) error { return w.b.Renew(ctx, []driver.Hold{last})[0] })
	w.judge(h, "renewed", err)
	if err == nil {
		w.renewals.Add(1)
		h.extend(since, last.TTL)
		if other := w.ledger.Beside(h.belief); other != "" && h.believed() && !w.Connected {
			w.fault("%s renewed with fence %d beside %s", w.who, h.fence, other)
		}
	}
	return err
}

// judge looks whether an answer fits what the holder believes.
func (w *worker) judge(h *hold, what string, err error) {
	if !errors.Is(err, driver.ErrHeld) && !errors.Is(err, driver.ErrLost) {
		return
	}
	if h.believed() && !w.Connected {
		w.fault("%s, with fence %d for %v more, %s: %v", w.who, h.fence, time.Duration(h.until.Load())-time.Since(w.began), what, err)
	}
	if h.belief != nil {
		h.lost.Store(true)
	}
}

// end is how an Owner ends: mostly by a release, sometimes by itself, or in silence.
func (w *worker) end(ctx context.Context, h *hold) {
	how := w.rnd.IntN(8)
	switch {
	case w.caps.Session || how > 1:
		w.release(ctx, h)
	case how == 1:
		last := h.Hold
		last.TTL, last.Shorten = max(w.TTL/4, w.caps.MinTTL), true
		w.call(ctx, func(ctx context.Context) error { return w.b.Renew(ctx, []driver.Hold{last})[0] })
	}
}

// release asks until it has an answer, or the hold has ended by itself.
func (w *worker) release(ctx context.Context, h *hold) {
	for since, first := time.Now(), true; ctx.Err() == nil; first = false {
		believed, later := h.believed(), h.belief != nil && !h.doubt && w.fence(h.Request.Name) > h.fence
		err := w.call(ctx, func(ctx context.Context) error { return w.b.Release(ctx, h.Hold) })
		switch {
		case first && errors.Is(err, driver.ErrLost) && believed && h.believed() && !w.Connected:
			w.fault("%s, with fence %d, released what it believed to hold: %v", w.who, h.fence, err)
		case first && err == nil && later && w.caps.Fence:
			w.fault("%s released with fence %d when %d had been granted, and hears no ErrLost", w.who, h.fence, w.fence(h.Request.Name))
		}
		if err == nil || errors.Is(err, driver.ErrLost) || driver.Final(err) {
			return
		}
		if !w.caps.Session && time.Since(since) > w.long {
			return
		}
	}
}
