package zklock

import (
	"context"
	"testing"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/faultfuzz"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

func TestLateCalls(t *testing.T) {
	t.Parallel()
	faultfuzz.Run(t, faultfuzz.Case{
		Servers: []string{testserver.SharedZooKeeper(t).Addr()},
		Rate:    0.02,
		Open: func(ctx context.Context, addrs []string) (driver.Backend, error) {
			return Open(ctx, patiently("zk://"+addrs[0]))
		},
	})
}
