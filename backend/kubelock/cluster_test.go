package kubelock

import (
	"context"
	"testing"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/drivertest"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

func TestLongConformance(t *testing.T) {
	t.Parallel()
	srv := testserver.SharedKube(t)
	url := srv.URL(srv.Namespace())
	drivertest.Run(t, drivertest.Harness{Open: func(ctx context.Context) (driver.Backend, error) { return Open(ctx, url) }})
}
