package claims

import (
	"fmt"

	"github.com/distlock/distlock/driver"
)

// A fence is a grant's number followed by SpanBits bits for the hand-offs inside its
// process. The number is one more than the last, and at least the clock in µs since
// 1970: so it increases over a lost store too. Fences stay below 1<<63, and room is
// left for them until the year 2255.
const (
	SpanBits  = 10
	Span      = 1 << SpanBits
	MaxNumber = 1<<(63-SpanBits) - 1
)

// Next is the number of the next grant; wall is the clock in µs since 1970.
func (l *Lock) Next(wall int64) (int64, error) {
	n := max(l.Number+1, wall)
	if n > MaxNumber {
		return 0, fmt.Errorf("%w: the fences of this name are used up", driver.ErrInvalid)
	}
	return n, nil
}

// Fences is how many fences of a span r gets: one where somebody stands in line, and
// for shared holds, which are never handed on.
func (l *Lock) Fences(r driver.Request) uint64 {
	if !r.Mode.Alone() || l.Queued(r.Owner) {
		return 1
	}
	return min(max(r.Fences, 1), Span)
}
