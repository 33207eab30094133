package redislock

import (
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/locktest"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// The scripts answer as package claims does, and so do the plain commands.
func TestSameAsClaims(t *testing.T) {
	srv := testserver.Redis(t)
	b, c := openOwn(t, srv.Addr(), Options{}), raw(t, srv.Addr())
	locktest.SameAsClaimsOfOneMode(t, b, 500, func(name, owner string) { endClaim(t, b, c, name, owner) })
}

// endClaim lets what an owner has end as if its TTL were over.
func endClaim(t *testing.T, b *Backend, c *redis.Client, name, owner string) {
	t.Helper()
	ctx := t.Context()
	keys := b.layout.Mode(driver.Read).Keys(nil, name, owner)
	value := c.Get(ctx, name).Val()
	if strings.HasPrefix(value, owner) {
		must.OK(t, c.Del(ctx, name).Err())
	} else if strings.HasPrefix(value, "shared ") {
		must.OK(t, c.ZAddXX(ctx, keys[1], zOf(owner, 1)).Err())
		if must.Get(c.ZCount(ctx, keys[1], "2", "+inf").Result())(t) == 0 {
			must.OK(t, c.Del(ctx, keys[:3]...).Err())
		}
	}
	for _, place := range must.Get(c.ZRange(ctx, keys[4], 0, -1).Result())(t) {
		if strings.HasPrefix(place, owner) {
			must.OK(t, c.ZAdd(ctx, keys[4], zOf(place, 1)).Err())
		}
	}
}
