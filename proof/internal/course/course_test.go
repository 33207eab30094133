package course

import (
	"context"
	"errors"
	"testing"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
)

// Each mode is taken as itself, and as many beside each other as Shares says; a hasty worker is refused, or gives up.
func TestWays(t *testing.T) {
	c := must.Get(distlock.New(memlock.New(), nil))(t)
	defer c.Close()
	for mode, most := range map[driver.Mode]int{driver.Exclusive: 1, driver.Write: 1, driver.Counted: Permits, driver.Read: 10} {
		w := Way{Mode: mode, Try: true}
		for range most {
			l := must.Get(w.Take(t.Context(), c, mode.String()))(t)
			expect.Equal(t, l.Mode(), mode, "the lease's mode")
		}
		if s := Shares(mode); max(s.Room, 1) < most || (s.Kind == "") != (most == 1) {
			t.Errorf("%v: %+v", mode, s)
		}
		if mode != driver.Read {
			expect.Be(t, expect.Err(w.Take(t.Context(), c, mode.String())), distlock.ErrHeld, mode, "is full")
		}
	}
	for held, gaveUp := false, false; !held || !gaveUp; {
		ctx, cancel := context.WithCancel(t.Context())
		w := Hasty(c.Caps(), driver.Exclusive)
		if !w.Try && w.GiveUp == 0 {
			cancel() // it would wait for ever
		}
		err := expect.Err(w.Take(ctx, c, driver.Exclusive.String()))
		cancel()
		held, gaveUp = held || errors.Is(err, distlock.ErrHeld), gaveUp || errors.Is(err, context.DeadlineExceeded)
		if err == nil {
			t.Fatal("it is granted twice")
		}
	}
}
