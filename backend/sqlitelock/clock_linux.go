package sqlitelock

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// newClock reads the monotonic clock that all processes of a Linux host share. It
// is the clock of Go's own runtime too: it doesn't jump, and it stands still while
// the host is suspended, so a store and its holders fall asleep and wake together.
func newClock() (clock, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return clock{}, fmt.Errorf("need /proc to tell one boot of the host from the next: %w", err)
	}
	shift := namespaceShift()
	return clock{boot: string(bytes.TrimSpace(id)), now: func() int64 {
		var ts unix.Timespec
		// It can't fail: every Linux kernel has this clock.
		_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts)
		return ts.Nano() - shift
	}}, nil
}

// namespaceShift is how far a time namespace moves this process's clock against the
// host's, in nanoseconds. Kernels without such namespaces shift nothing.
func namespaceShift() int64 {
	text, err := os.ReadFile("/proc/self/timens_offsets")
	if err != nil {
		return 0
	}
	return parseShift(text)
}

func parseShift(text []byte) int64 {
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		f := strings.Fields(lines.Text())
		if len(f) != 3 || f[0] != "monotonic" && f[0] != strconv.Itoa(unix.CLOCK_MONOTONIC) {
			continue
		}
		sec, err1 := strconv.ParseInt(f[1], 10, 64)
		nsec, err2 := strconv.ParseInt(f[2], 10, 64)
		if err1 == nil && err2 == nil {
			return sec*int64(time.Second) + nsec
		}
	}
	return 0
}
