package drivertest

import (
	"context"
	"time"

	"github.com/distlock/distlock/driver"
)

// shows changes what Inspect shows of a holder.
func shows(change func(l *lab, h *driver.Holder)) func(*lab, *patched) {
	return func(l *lab, p *patched) {
		recorded(l, p)
		inspect := p.inspect
		p.inspect = func(ctx context.Context, name string) (driver.Info, error) {
			info, err := inspect(ctx, name)
			for i := range info.Holders {
				l.locked(func() { change(l, &info.Holders[i]) })
			}
			return info, err
		}
	}
}

var factMutants = []mutant{{
	"the fence of a grant is shown after the first renewal", "facts/grant",
	func(l *lab, p *patched) {
		shows(func(l *lab, h *driver.Holder) {
			if l.notes[h.Owner] == "" {
				h.Fence = 0
			}
		})(l, p)
		renew := p.renew
		p.renew = func(ctx context.Context, holds []driver.Hold) []error {
			for _, h := range holds {
				l.locked(func() { l.notes[h.Owner] = "renewed" })
			}
			return renew(ctx, holds)
		}
	},
}, {
	"a refusal names the holder before", "facts/grant",
	func(_ *lab, p *patched) {
		acquire := p.acquire
		p.acquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
			g, err := acquire(ctx, r)
			if held, ok := err.(*driver.HeldError); ok {
				held.Holders = []driver.Holder{{Owner: driver.NewOwner(), Mode: r.Mode}}
			}
			return g, err
		}
	},
}, {
	"the fence of a writer is shown for the reader that it became", "facts/downgrade",
	shows(func(l *lab, h *driver.Holder) {
		if h.Mode == driver.Read {
			h.Fence--
		}
	}),
}, {
	"a renewal restarts the time that a lock was held", "facts/held",
	func(l *lab, p *patched) {
		shows(func(l *lab, h *driver.Holder) {
			if renewed, err := time.Parse(time.RFC3339Nano, l.notes["renewed"]); err == nil {
				h.Held = time.Since(renewed)
			}
		})(l, p)
		renew := p.renew
		p.renew = func(ctx context.Context, holds []driver.Hold) []error {
			l.locked(func() { l.notes["renewed"] = time.Now().Format(time.RFC3339Nano) })
			return renew(ctx, holds)
		}
	},
}}
