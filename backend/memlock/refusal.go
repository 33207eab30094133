package memlock

import (
	"slices"
	"time"

	"github.com/distlock/distlock/driver"
)

// toldHolders bounds what a refusal tells, so that trying for one of ten thousand
// permits stays cheap.
const toldHolders = 8

// refusal says who keeps r out, and for how long if nobody renews or leaves.
func (l *lock) refusal(r *driver.Request, now time.Duration) *driver.HeldError {
	e := new(driver.HeldError)
	var few [16]time.Duration
	ends := few[:0]
	for _, c := range l.holders {
		if excludes(c.mode, r.Mode) {
			ends = append(ends, c.until)
			if len(e.Holders) < toldHolders {
				e.Holders = append(e.Holders, c.tell(now))
			}
		}
	}
	for _, c := range l.ahead(r.Owner) {
		if excludes(c.mode, r.Mode) {
			ends = append(ends, c.until)
		}
	}
	slices.Sort(ends)
	e.Retry = ends[len(ends)-room(r.Mode, r.Limit)] - now
	return e
}
