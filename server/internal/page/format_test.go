package page

import (
	"strings"
	"testing"
	"time"

	"github.com/distlock/distlock/internal/testkit/expect"
)

func TestTimes(t *testing.T) {
	t.Parallel()
	var got []string
	for _, d := range []time.Duration{-time.Second, 59 * time.Second, 61 * time.Second, 3661 * time.Second, 90_000 * time.Second} {
		got = append(got, span(d))
	}
	for _, d := range []time.Duration{0, 42 * time.Microsecond, 1500 * time.Microsecond, 42 * time.Millisecond, 1500 * time.Millisecond, 42 * time.Second, 62 * time.Second} {
		got = append(got, latency(d))
	}
	expect.Equal(t, strings.Join(got, ", "), "0s, 59s, 1m 01s, 1h 01m, 1d 01h, 0 µs, 42 µs, 1.5 ms, 42 ms, 1.5 s, 42 s, 1m 02s")
}
