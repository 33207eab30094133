package redisson

import (
	"testing"
)

// RedissonRedLock and the backend quorum keep each other out.
func TestRedLock(t *testing.T) {
	d := byMajority(t)
	t.Run("turns", func(t *testing.T) { turnsAlone(t, d, party{red, 2, 40}) })
	t.Run("wake-ups", func(t *testing.T) { wakeUps(t, d, red, 20) })
}
