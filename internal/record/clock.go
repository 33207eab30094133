package record

import "time"

// apart is how far the clocks of a store's hosts may be apart. Were they further apart, one that is ahead would end a hold too early.
const apart = 5 * time.Second

// Late is driver.Caps.Late of a store that says how old its records are: apart, and what seconds leave open on the way.
const Late = 10 * time.Second

// Age returns the Age of a version that was written and read at these seconds of the store's clock. Zero: not known.
func Age(written, read time.Time) time.Duration {
	if written.IsZero() {
		return 0
	}
	return max(0, read.Sub(written)-time.Second-apart)
}

// OneClock reports whether the two seconds may be of one clock, if the version was read so soon after it was written. A proxy may
// put its own time in place of the store's.
func OneClock(written, read time.Time, elapsed time.Duration) bool {
	age := read.Sub(written)
	return !written.IsZero() && age >= -time.Second && age <= elapsed+2*time.Second
}
