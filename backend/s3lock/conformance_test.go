package s3lock

import (
	"context"
	"testing"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/drivertest"
	"github.com/distlock/distlock/internal/testkit/oddnames"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

func TestConformance(t *testing.T) { conform(t, newFake().serve(t)) }

func TestLongConformanceOfARealServer(t *testing.T) {
	conform(t, urlOf(testserver.SharedS3(t).Endpoint()))
}

// A server whose reads are not atomic loses no lock by it.
func TestLongConformanceOfAServerThatTearsReads(t *testing.T) {
	conform(t, urlOf(testserver.S3(t, testserver.S3Options{Sidecar: true}).Endpoint()))
}

func conform(t *testing.T, url string) {
	drivertest.Run(t, drivertest.Harness{Open: func(ctx context.Context) (driver.Backend, error) { return Open(ctx, url) }})
}

func TestOddNames(t *testing.T) {
	t.Parallel()
	oddnames.Try(t, connect(t, newFake().serve(t)), nil)
}

func TestLongOddNamesOnARealServer(t *testing.T) {
	t.Parallel()
	oddnames.Try(t, connect(t, urlOf(testserver.SharedS3(t).Endpoint())), nil)
}
