package sqlitelock

import (
	"fmt"

	"github.com/distlock/distlock/driver"
)

// A fence is a grant's number followed by spanBits bits for the hand-offs inside
// its process. The number is one more than the last, and at least the wall clock
// in µs since 1970: so it increases over a lost file too. Fences stay below 1<<63,
// and room is left for them until the year 2255.
const (
	spanBits  = 10
	span      = 1 << spanBits
	maxNumber = 1<<(63-spanBits) - 1
)

// next is the number of the next grant.
func (l *lock) next(wall int64) (int64, error) {
	n := max(max(l.number, l.swept)+1, wall)
	if n > maxNumber {
		return 0, fmt.Errorf("%w: the fences of this name are used up", driver.ErrInvalid)
	}
	return n, nil
}

// fencesFor is how many fences of the span r gets: one where somebody stands in
// line, and for shared holds, which are never handed on.
func (l *lock) fencesFor(r driver.Request) uint64 {
	if !r.Mode.Alone() || l.queued(r.Owner) {
		return 1
	}
	return min(max(r.Fences, 1), span)
}
