package bounded_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock/distlock/internal/bounded"
)

type key struct{}

var errWhy = errors.New("why")

// All ways to notice the end of a context agree, no matter what ends it, and whether a child was made
// before.
func TestEnds(t *testing.T) {
	type rig struct {
		*bounded.Context
		cancel context.CancelCauseFunc
		limit  context.CancelFunc
	}
	for what, c := range map[string]struct {
		end        func(r rig)
		err, cause error
	}{
		"the caller's end": {func(r rig) { r.cancel(errWhy) }, context.Canceled, errWhy},
		"the deadline":     {func(rig) { time.Sleep(time.Minute) }, context.DeadlineExceeded, context.DeadlineExceeded},
		"the limit's end":  {func(r rig) { r.limit() }, context.Canceled, context.Canceled},
	} {
		for _, early := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				caller, cancel := context.WithCancelCause(context.WithValue(t.Context(), key{}, 1))
				limit, stop := context.WithTimeout(context.Background(), time.Minute)
				defer stop()
				r := rig{bounded.New(caller, limit), cancel, stop}
				defer r.End()
				if early && what == "the limit's end" {
					return // merged contexts end by the limit's deadline only
				}
				first, second := bounded.Ends(r.Context)
				var child context.Context
				childOf := func() {
					var cancel context.CancelFunc
					child, cancel = context.WithCancel(r.Context)
					t.Cleanup(cancel)
				}
				if early {
					childOf()
				}
				if r.Err() != nil || r.Value(key{}) != 1 {
					t.Errorf("%s: before: %v, value %v", what, r.Err(), r.Value(key{}))
				}
				c.end(r)
				synctest.Wait()
				select {
				case <-first:
				case <-second:
				default:
					t.Errorf("%s: neither channel is closed", what)
				}
				if !early {
					childOf()
				}
				<-r.Done()
				<-child.Done()
				for _, ctx := range []context.Context{r, child} {
					if bounded.Limited(ctx) != (what != "the caller's end") {
						t.Errorf("%s, early %v: it is the limit's: %v", what, early, bounded.Limited(ctx))
					}
				}
				if !errors.Is(r.Err(), c.err) || !errors.Is(context.Cause(r), c.cause) || !errors.Is(child.Err(), c.err) || r.Value(key{}) != 1 {
					t.Errorf("%s, early %v: %v by %v, child %v, value %v", what, early, r.Err(), context.Cause(r), child.Err(), r.Value(key{}))
				}
				cancel(nil)
			})
		}
	}
}

func TestDeadline(t *testing.T) {
	limit, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()
	sooner, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	for _, caller := range []context.Context{sooner, context.Background()} {
		want, ok := caller.Deadline()
		if !ok {
			want, _ = limit.Deadline()
		}
		if got, _ := bounded.New(caller, limit).Deadline(); !got.Equal(want) {
			t.Errorf("deadline %v, want %v", got, want)
		}
	}
}
