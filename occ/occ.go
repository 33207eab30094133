// Package occ updates without a lock: read, compute, and store if nobody else has stored
// meanwhile; if somebody has, do it again (optimistic concurrency control).
//
//	total, err := occ.Update(ctx, load, change, store)
//
// It is right where one record changes by a quick computation, and writers seldom meet. It
// needs no lease, no clock and no fence: a process that pauses for an hour between its read and
// its write finds that its write is refused. Take a lock instead when the work has effects
// that can't be taken back or done twice (a payment, a mail), takes long, touches several stores, or
// when so many write one record that most of their work would be for nothing.
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

// ErrConflict is what Update answers when others were faster in every attempt. Nothing was
// stored.
var ErrConflict = errors.New("occ: others have changed the value each time")

// Defaults of Update.
const (
	DefaultAttempts = 20
	DefaultFirst    = 2 * time.Millisecond
	DefaultMost     = 250 * time.Millisecond
)

// Option changes how Update tries.
type Option func(*options)

type options struct {
	attempts    int
	first, most time.Duration
	onConflict  func(attempt int)
}

// Attempts is how often Update tries at most; at least 1. Default: DefaultAttempts. More
// help where many write at the same time.
func Attempts(n int) Option { return func(o *options) { o.attempts = n } }

// Backoff bounds the pause after a conflict: it is random, below first after the first
// one, below twice as much after each further one, and never above most. Both are positive.
// Defaults: DefaultFirst, DefaultMost. first should be about as long as a load and a store take.
func Backoff(first, most time.Duration) Option {
	return func(o *options) { o.first, o.most = first, most }
}

// OnConflict is called after each attempt, from 1 on, in which somebody else was faster; to
// count them. Many conflicts are the sign to take a lock instead.
func OnConflict(f func(attempt int)) Option { return func(o *options) { o.onConflict = f } }

// Update loads a value, changes it, and stores the new one if the old one is still there.
// Otherwise it waits a moment and begins anew. It returns the value that was stored.
//
// change may be called several times, each time with what load has just read. It must do
// nothing but compute: no writes, no messages. It must not alter what it is given in place,
// if store compares it (slices, maps, pointers).
//
// store answers true if it has stored the new value in place of the old one, and false if
// that was there no more; comparison and change must be one step. T has what store needs for
// that: a version that was read with the value, or the value itself.
//
// An error of load, change or store ends Update and is returned as it is, wrapped by
// nobody. One of load or change says that nothing was stored. One of store may leave open
// whether it was, as when the connection broke; so it is not tried again. When ctx ends while
// Update waits its error is returned, and nothing was stored. After the last attempt the error
// is ErrConflict. An Option of no sense is an error at once.
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
		value, stored, err := try(ctx, load, change, store)
		if err != nil || stored {
			return value, err
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

// try is one attempt. The value is that of T's zero value unless it was stored.
func try[T any](
	ctx context.Context,
	load func(ctx context.Context) (T, error),
	change func(ctx context.Context, old T) (T, error),
	store func(ctx context.Context, old, new T) (bool, error),
) (value T, stored bool, err error) {
	var none T
	if err := ctx.Err(); err != nil {
		return none, false, fmt.Errorf("occ: %w", err)
	}
	old, err := load(ctx)
	if err != nil {
		return none, false, err
	}
	value, err = change(ctx, old)
	if err != nil {
		return none, false, err
	}
	if stored, err = store(ctx, old, value); err != nil || !stored {
		return none, false, err
	}
	return value, true, nil
}

func applyDefaults(opts []Option) (options, error) {
	o := options{attempts: DefaultAttempts, first: DefaultFirst, most: DefaultMost}
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

// pause is how long to wait after an attempt, so that those who met do not meet again.
func (o *options) pause(attempt int) time.Duration {
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
