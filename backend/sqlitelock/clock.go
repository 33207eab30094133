package sqlitelock

import "time"

// clock tells by what time holds end.
type clock struct {
	// boot names the life of the clock. Times of another boot mean nothing, and
	// those who held then are dead.
	boot string

	// now is in nanoseconds, the same for every process of the host.
	now func() int64
}

// wallMicros is the wall clock in µs. It only floors the numbers of grants, so it
// may jump.
func wallMicros() int64 { return time.Now().UnixMicro() }
