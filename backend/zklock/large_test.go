package zklock

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// What is longer than the servers take never gets there, as they would end the connection of
// all: to ask again is no use.
func TestTooLarge(t *testing.T) {
	for name, url := range map[string]string{
		"server": testserver.SharedZooKeeper(t).URL(), "ensemble": testserver.SharedZooKeeperCluster(t).URL(),
	} {
		t.Run(name, func(t *testing.T) {
			b := open(t, url)
			kept := request("", driver.Exclusive)
			acquire(t, b, kept)
			session := b.placeOf(kept.Hold).s
			for _, mode := range []driver.Mode{driver.Exclusive, driver.Write, driver.Counted} {
				for _, queue := range []bool{false, true} {
					fits, meta := request("", mode), request("", mode)
					fits.Queue, meta.Queue = queue, queue
					fits.Meta = map[string]string{"note": strings.Repeat("x", 1000<<10)}
					acquire(t, b, fits)
					release(t, b, fits)
					meta.Meta = map[string]string{"note": strings.Repeat("x", 1<<20)}
					refused(t, b, meta, driver.ErrInvalid)
					long := request(strings.Repeat("x", 1<<20), mode)
					long.Queue = queue
					refused(t, b, long, driver.ErrInvalid)
				}
			}
			acquire(t, b, kept)
			if b.placeOf(kept.Hold).s != session {
				t.Error("the session was lost")
			}
		})
	}
}

// A TTL that no session can have is told at once.
func TestTooLong(t *testing.T) {
	b := open(t, testserver.SharedZooKeeper(t).URL())
	most := b.Caps().MaxTTL
	for _, ttl := range []time.Duration{most, most + 1, math.MaxInt64} {
		r := request("", driver.Exclusive)
		r.TTL = ttl
		if ttl == most {
			acquire(t, b, r)
		} else {
			refused(t, b, r, driver.ErrInvalid)
		}
	}
}
