package kubelock

import (
	"context"
	"os"
	"testing"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/drivertest"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

func TestMain(m *testing.M) { os.Exit(testserver.Run(m)) }

func TestConformance(t *testing.T) {
	t.Parallel()
	url := newFake(t).url()
	drivertest.Run(t, drivertest.Harness{Holds: 40, Open: func(ctx context.Context) (driver.Backend, error) { return Open(ctx, url) }})
}
