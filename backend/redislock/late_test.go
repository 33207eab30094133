package redislock_test

import (
	"context"
	"strings"
	"testing"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/faultfuzz"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

func TestLateCalls(t *testing.T) { lateCalls(t, "layout=string") }

func TestLongLateCalls(t *testing.T) {
	for name, query := range map[string]string{"redisson": "layout=redisson", "without scripts": "scripts=off"} {
		t.Run(name, func(t *testing.T) { lateCalls(t, query) })
	}
}

func lateCalls(t *testing.T, query string) {
	t.Parallel()
	faultfuzz.Run(t, faultfuzz.Case{
		Servers: []string{testserver.SharedRedis(t).Addr()},
		Text:    "late:",
		Open: func(ctx context.Context, addrs []string) (driver.Backend, error) {
			return driver.Open(ctx, "redis://"+addrs[0]+"?"+query)
		},
	})
}

func TestLongLateCallsOfRedlock(t *testing.T) {
	t.Parallel()
	var servers []string
	ms := startMasters(t)
	for _, m := range ms[:3] {
		servers = append(servers, m.Addr())
	}
	faultfuzz.Run(t, faultfuzz.Case{
		Servers: servers,
		Text:    "late:",
		Open: func(ctx context.Context, addrs []string) (driver.Backend, error) {
			return driver.Open(ctx, "quorum+redis://"+strings.Join(addrs, ","))
		},
	})
}
