package redislock

import (
	"context"
	"os"
	"testing"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/drivertest"
	"github.com/distlock/distlock/internal/testserver"
	"github.com/redis/go-redis/v9"
)

func TestMain(m *testing.M) { os.Exit(testserver.Run(m)) }

func TestConformance(t *testing.T) {
	srv := testserver.SharedRedis(t)
	for _, layout := range []Layout{String, Redisson} {
		t.Run("rueidis/"+string(layout), func(t *testing.T) {
			drivertest.Run(t, drivertest.Harness{Open: func(ctx context.Context) (driver.Backend, error) {
				return Open(ctx, srv.URL()+"?layout="+string(layout))
			}})
		})
		t.Run("go-redis/"+string(layout), func(t *testing.T) {
			drivertest.Run(t, drivertest.Harness{Open: func(context.Context) (driver.Backend, error) {
				c := redis.NewClient(&redis.Options{Addr: srv.Addr()})
				t.Cleanup(func() { c.Close() })
				return NewGoRedis(c, &Options{Layout: layout})
			}})
		})
	}
}
