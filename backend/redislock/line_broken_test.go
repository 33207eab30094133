package redislock

import (
	"slices"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
)

// A line that lost one of its keys, by eviction or by hand, is put right by those who
// stand in it: each has one place, and it ends when it should.
func TestLineLosesAKey(t *testing.T) {
	eachLayout(t, func(t *testing.T, layout Layout) {
		keys := ownQueueKeys
		if layout == Redisson {
			keys = javaQueueKeys
		}
		for i, lost := range keys("NAME") {
			b, c, r := heldLine(t, layout)
			var line []driver.Request
			var written []string
			for range 3 {
				w := stands(t, b, r.Name)
				line, written = append(line, w), append(written, b.layout.recipes[w.Mode].field(w.Owner))
			}
			c.Del(t.Context(), keys(r.Name)[i])
			for range 2 {
				for _, w := range line {
					refused(t, b, w, driver.ErrHeld)
				}
			}
			if got := c.LRange(t.Context(), keys(r.Name)[0], 0, -1).Val(); !slices.Equal(got, written) {
				t.Errorf("without %s the line is %v, want %v", lost, got, written)
			}
			for _, scores := range keys(r.Name)[1:] {
				for _, z := range c.ZRangeWithScores(t.Context(), scores, 0, -1).Val() {
					if left := time.Until(time.UnixMilli(int64(z.Score))); left > time.Minute {
						t.Errorf("without %s a place in %s ends in %v", lost, scores, left)
					}
				}
			}
		}
	})
}
