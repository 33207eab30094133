package redislock

import (
	"testing"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// Redis 6.2 runs scripts a little differently, and words their errors otherwise.
func TestLongOldServer(t *testing.T) {
	srv := testserver.OldRedis(t)
	for _, layout := range []Layout{String, Redisson} {
		t.Run(string(layout), func(t *testing.T) {
			t.Parallel()
			conform(t, srv, openers[0], Options{Layout: layout})
		})
	}
	t.Run("another kind", func(t *testing.T) {
		b, c := openOwn(t, srv.Addr(), Options{}), raw(t, srv.Addr())
		r := request("", driver.Exclusive)
		c.RPush(t.Context(), r.Name, "text")
		refused(t, b, r, driver.ErrInvalid)
	})
}
