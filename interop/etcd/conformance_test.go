package etcd

import (
	"context"
	"testing"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/drivertest"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// The backend's own package runs these checks on the installed release.
func TestConformanceOnTheCurrentRelease(t *testing.T) {
	url := testserver.SharedCurrentEtcd(t).URL() + "/conformance/"
	drivertest.Run(t, drivertest.Harness{
		Open: func(ctx context.Context) (driver.Backend, error) { return driver.Open(ctx, url) },
	})
}
