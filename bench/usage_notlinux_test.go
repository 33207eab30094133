//go:build !linux

package bench

import "time"

// cpuOf is not supported on this system.
func cpuOf(int) (time.Duration, error) { return 0, nil }

// cpuOfFamily is not supported on this system.
func cpuOfFamily(int) (time.Duration, error) { return 0, nil }
