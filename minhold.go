package distlock

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// minHoldLeft returns how long the hold has to be kept for MinHold.
func (h *hold) minHoldLeft() time.Duration {
	if h.s.minHold == 0 || h.unused.Load() {
		return 0 // such a hold may be handed off, which changes since
	}
	return h.since + h.s.minHold - h.env.now()
}

// unlockUnused unlocks a lease that no caller got.
func (l *Lease) unlockUnused(ctx context.Context) error {
	l.neverUsed()
	return l.Unlock(ctx)
}

// neverUsed frees a hold from MinHold, if l is its only lease.
func (l *Lease) neverUsed() {
	l.h.sh.mu.Lock()
	defer l.h.sh.mu.Unlock()
	if l.h.lease == l.core() && len(l.h.nested) == 0 {
		l.h.unused.Store(true)
	}
}

// keep goes on renewing the hold, whose leases have ended, where it would end before MinHold is over, and has it released
// then.
func (h *hold) keep(ctx context.Context) error {
	h.env.watchdog.Keep(&h.life)
	defer h.releaseLater() // not before: to prolong a hold that is being released would be a loss
	return h.prolong(ctx)
}

// prolong makes the hold live until MinHold is over, also if this process ends before, and ends its renewal. A session that
// ends sooner ends the hold, and is renewed.
func (h *hold) prolong(ctx context.Context) error {
	if h.env.caps.Session {
		return nil
	}
	err := h.retry(ctx, 4, func() (bool, error) { return answered(h.prolongOnce(ctx)) })
	switch {
	case errors.Is(err, ErrLost):
		return fail("unlock", h.s.name, err)
	case err != nil:
		return fail("unlock", h.s.name, fmt.Errorf("if this process ends, so may the lock before MinHold is over: %w", unknown(err)))
	}
	h.env.watchdog.Forget(&h.life)
	return nil
}

func (h *hold) prolongOnce(ctx context.Context) error {
	ctx, stop := context.WithTimeout(ctx, h.s.terms.CallTimeout)
	defer stop()
	reserved, err := h.env.watchdog.Reserve(ctx, stop, &h.life)
	if err != nil {
		return err
	}
	// The margin is no part of the life that is left at the backend.
	ttl, err := reserved.Extension(h.minHoldLeft() - h.s.terms.Margin)
	if err != nil || ttl == 0 {
		reserved.End(0, 0)
		return err
	}
	ttl = max(ttl, h.env.caps.MinTTL)
	h.sh.mu.Lock()
	h.longestTTL.Store(int64(max(h.requestedTTL(), ttl)))
	h.sh.mu.Unlock()
	return reserved.Renew(ttl)
}
