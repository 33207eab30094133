package redislock

import (
	"context"
	"regexp"
	"testing"

	"github.com/distlock/distlock/internal/testkit/oddnames"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// All keys, those beside locks too, have the prefix where the documented rights want it.
func TestOddNames(t *testing.T) {
	t.Parallel()
	ours := regexp.MustCompile(`^(app:|\{app:|distlock_(line|places):.app:|redisson_lock_\w+:\{?app:|distlock_places:app:)`)
	for _, layout := range []Layout{String, Redisson} {
		srv := testserver.Redis(t)
		oddnames.Try(t, openOwn(t, srv.Addr(), Options{Prefix: "app:", Layout: layout}), func() (foreign []string) {
			keys, err := raw(t, srv.Addr()).Keys(context.Background(), "*").Result()
			if err != nil || len(keys) == 0 {
				t.Errorf("%d keys, %v", len(keys), err)
			}
			for _, key := range keys {
				if !ours.MatchString(key) {
					foreign = append(foreign, key)
				}
			}
			return foreign
		})
	}
}
