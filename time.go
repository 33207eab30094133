package distlock

import (
	"context"
	"math/rand/v2"
	"time"
)

// sleep waits for d, and reports false if ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// jitter is a random time between d/2 and 3d/2, so that those who were refused
// together do not come back together.
func jitter(d time.Duration) time.Duration {
	return d/2 + rand.N(d+1)
}

// backoff doubles base with every try, up to limit.
func backoff(try int, base, limit time.Duration) time.Duration {
	d := limit
	if try < 20 && base < limit>>try {
		d = base << try
	}
	return max(d, time.Microsecond)
}
