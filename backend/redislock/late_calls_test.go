package redislock_test

import (
	"context"
	"strings"
	"testing"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/faultfuzz"
	"github.com/distlock/distlock/internal/testserver"
)

func TestLateCalls(t *testing.T) {
	for name, query := range map[string]string{
		"string": "layout=string", "redisson": "layout=redisson", "without scripts": "scripts=off",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			faultfuzz.Run(t, faultfuzz.Case{
				Servers: []string{testserver.Redis(t).Addr()},
				Text:    "late:",
				Open: func(ctx context.Context, addrs []string) (driver.Backend, error) {
					return driver.Open(ctx, "redis://"+addrs[0]+"?"+query)
				},
			})
		})
	}
}

func TestLateCallsOfRedlock(t *testing.T) {
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
