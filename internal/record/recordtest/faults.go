package recordtest

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/distlock/distlock/internal/record"
)

// ErrReset is what a call gets whose answer is lost.
var ErrReset = errors.New("connection reset")

// Faults is a bad network before a store: it loses requests and answers, and delivers writes late and twice.
type Faults struct {
	record.Store

	// Delay is the longest time that a request or an answer usually takes, and Late the longest that it takes at times.
	Delay, Late time.Duration

	// Rate is the share of calls that something happens to.
	Rate float64

	late sync.WaitGroup // deliveries for which nobody waits any more

	mu     sync.Mutex
	random *rand.Rand
}

// NewFaults returns a bad network before store. Equal seeds draw equal numbers.
func NewFaults(store record.Store, seed uint64) *Faults {
	return &Faults{Store: store, random: rand.New(rand.NewPCG(seed, 1))}
}

func (f *Faults) draw() float64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.random.Float64()
}

// upTo returns a random time up to d, of any order of magnitude.
func (f *Faults) upTo(d time.Duration) time.Duration {
	x := f.draw()
	return time.Duration(x * x * x * float64(d))
}

// Read may take long, or have no answer.
func (f *Faults) Read(ctx context.Context, name string) (record.Record, error) {
	if err := f.pass(ctx); err != nil {
		return record.Record{}, err
	}
	r, err := f.Store.Read(ctx, name)
	if err == nil {
		err = f.pass(ctx)
	}
	return r, err
}

// pass is the way of a request or of an answer.
func (f *Faults) pass(ctx context.Context) error {
	delay := f.upTo(f.Delay)
	switch x := f.draw() / f.Rate; {
	case x < 0.25:
		return ErrReset
	case x < 0.5:
		delay = f.upTo(f.Late)
	}
	return sleep(ctx, delay)
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

// delivery is the answer to a write.
type delivery struct {
	record.Written
	err error
}

// Write delivers the write as a network does: it arrives or not, at once or late, also when ctx has ended, and perhaps
// twice. Then the caller gets either answer.
func (f *Faults) Write(ctx context.Context, name string, r record.Record) (record.Written, error) {
	answers := make(chan delivery, 2)
	deliver := func(after time.Duration) {
		f.late.Add(1)
		go func() {
			defer f.late.Done()
			time.Sleep(after)
			w, err := f.Store.Write(context.WithoutCancel(ctx), name, r)
			answers <- delivery{w, err}
		}()
	}
	arrival, back := f.upTo(f.Delay), f.upTo(f.Delay)
	switch x := f.draw() / f.Rate; {
	case x < 0.15: // the request is lost
		return record.Written{}, f.reset(ctx)
	case x < 0.35: // it arrives when the caller may have given up
		deliver(f.upTo(f.Late))
		if f.draw() < 0.5 {
			return record.Written{}, f.reset(ctx)
		}
	case x < 0.55: // the answer is lost
		deliver(arrival)
		return record.Written{}, f.reset(ctx)
	case x < 0.7: // the answer is late
		deliver(arrival)
		back = f.upTo(f.Late)
	case x < 0.85: // both copies arrive, and either may be answered
		deliver(arrival)
		deliver(f.upTo(f.Late))
	case x < 1:
		deliver(arrival)
		deliver(arrival)
		if err := f.skip(ctx, answers); err != nil {
			return record.Written{}, err
		}
	default:
		deliver(arrival)
	}
	return f.await(ctx, answers, back)
}

// reset is the end of a connection, now or soon or only when the caller gives up.
func (f *Faults) reset(ctx context.Context) error {
	if err := sleep(ctx, f.upTo(f.Late)); err != nil {
		return err
	}
	return ErrReset
}

// skip loses the first of two answers.
func (f *Faults) skip(ctx context.Context, answers chan delivery) error {
	select {
	case <-answers:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (f *Faults) await(ctx context.Context, answers chan delivery, back time.Duration) (record.Written, error) {
	select {
	case a := <-answers:
		if err := sleep(ctx, back); err != nil {
			return record.Written{}, err
		}
		return a.Written, a.err
	case <-ctx.Done():
		return record.Written{}, ctx.Err()
	}
}

// Wait waits until nothing is under way.
func (f *Faults) Wait() { f.late.Wait() }
