// Package occ updates values without a lock: it reads, computes, and stores if the value is still the
// same, and otherwise starts again (optimistic concurrency control).
//
//	total, err := occ.Update(ctx, load, change, store)
//
// It suits a quick change of one record for which writers seldom compete. It needs no lease, no clock
// and no fence: if a process pauses for an hour between its read and its write, the write is refused.
// Take a lock if the work has effects that can't be undone or repeated (a payment, a mail), if it
// takes long or uses several stores, or if so many writers compete that most of their work is wasted.
//
// Packages occsql and occredis have load and store for databases and for Redis.
package occ

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// ErrConflict is returned by Update if another writer was faster in every attempt. Nothing was
// stored.
var ErrConflict = errors.New("occ: another writer was faster in each attempt")

// Defaults of Update.
const (
	DefaultAttempts = 20
	DefaultFirst    = 2 * time.Millisecond
	DefaultMost     = 250 * time.Millisecond
)

// Option configures Update.
type Option func(*updateOptions)

type updateOptions struct {
	attempts    int
	first, most time.Duration
	onConflict  func(attempt int)
}

// Attempts bounds the number of attempts; at least 1. Default: DefaultAttempts. Many concurrent
// writers need more.
func Attempts(n int) Option { return func(o *updateOptions) { o.attempts = n } }

// Backoff bounds the pause after a conflict. The pause is random: at first below first, then below
// twice as much after each further conflict, and never above most. Both are positive. Defaults:
// DefaultFirst, DefaultMost. first should be about the duration of a load and a store.
func Backoff(first, most time.Duration) Option {
	return func(o *updateOptions) { o.first, o.most = first, most }
}

// OnConflict sets a function that is called after each attempt, from 1 on, in which another writer
// was faster. If there are many conflicts, take a lock instead.
func OnConflict(f func(attempt int)) Option { return func(o *updateOptions) { o.onConflict = f } }

// Update loads a value, changes it, and stores the new value if the old one is still there.
// Otherwise it waits a moment and starts again. It returns the value that was stored.
//
// change may be called repeatedly, each time with a newly loaded value. It must only compute: no
// writes, no messages. It must not modify its argument in place if store compares that (slices,
// maps, pointers).
//
// store returns true if it has replaced the old value by the new one, and false if the old value
// was no longer there. Comparing and replacing must be one atomic step. T contains what store
// compares: a version that was read with the value, or the value itself.
//
// Update returns an error of load, change or store unchanged. After an error of load or change
// nothing was stored. After an error of store the outcome may be unknown, as when a connection
// broke, so Update doesn't retry. If ctx ends while Update waits, Update returns its error, and
// nothing was stored. After the last attempt the error is ErrConflict. Invalid options are an error
// at once.
func Update[T any](
	ctx context.Context,
	load func(ctx context.Context) (T, error),
	change func(ctx context.Context, old T) (T, error),
	store func(ctx context.Context, old, new T) (bool, error),
	opts ...Option,
) (T, error) {
	var none T
	o, err := applyDefaults(opts)
	if err != nil {
		return none, err
	}
	for attempt := 1; ; attempt++ {
		if err := ctx.Err(); err != nil {
			return none, fmt.Errorf("occ: %w", err)
		}
		old, err := load(ctx)
		if err != nil {
			return none, err
		}
		value, err := change(ctx, old)
		if err != nil {
			return none, err
		}
		stored, err := store(ctx, old, value)
		switch {
		case err != nil:
			return none, err
		case stored:
			return value, nil
		}
		if o.onConflict != nil {
			o.onConflict(attempt)
		}
		if attempt == o.attempts {
			return none, fmt.Errorf("%w (%d attempts)", ErrConflict, attempt)
		}
		if err := sleep(ctx, o.pause(attempt)); err != nil {
			return none, fmt.Errorf("occ: after %d conflicts: %w", attempt, err)
		}
	}
}

func applyDefaults(opts []Option) (updateOptions, error) {
	o := updateOptions{attempts: DefaultAttempts, first: DefaultFirst, most: DefaultMost}
	for _, opt := range opts {
		opt(&o)
	}
	switch {
	case o.attempts < 1:
		return o, fmt.Errorf("occ: Attempts(%d): want at least 1", o.attempts)
	case o.first <= 0 || o.most < o.first:
		return o, fmt.Errorf("occ: Backoff(%v, %v): want positive durations, the second at least as long as the first", o.first, o.most)
	}
	return o, nil
}

// pause returns a random time to wait after an attempt, so that competing writers separate.
func (o *updateOptions) pause(attempt int) time.Duration {
	bound := o.first
	for range attempt - 1 {
		if bound >= o.most/2 {
			bound = o.most
			break
		}
		bound *= 2
	}
	return rand.N(bound) + 1
}

// sleep is internal/wait's Sleep: this package imports the standard library only.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
