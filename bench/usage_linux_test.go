package bench

import (
	"time"

	"golang.org/x/sys/unix"
)

// cpuOf is the processor time that a process has used, by its clock for that.
func cpuOf(pid int) (time.Duration, error) {
	const scheduled = 2
	var t unix.Timespec
	err := unix.ClockGettime(int32(^pid<<3|scheduled), &t)
	return time.Duration(t.Nano()), err
}
