//go:build !linux

package bench

import "time"

// cpuOf is not known here.
func cpuOf(int) (time.Duration, error) { return 0, nil }

// cpuOfFamily is not known here.
func cpuOfFamily(int) (time.Duration, error) { return 0, nil }
