package redislock

import (
	"errors"
	"fmt"
	"testing"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit"
	"github.com/distlock/distlock/internal/testkit/faultproxy"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// stopped returns a backend whose server has gone down.
func stopped(t *testing.T, o opener, opts Options) *Backend {
	t.Helper()
	srv := testserver.Redis(t)
	b := o.open(t, srv.Addr(), opts)
	warm(t, b, driver.Exclusive)
	srv.Kill()
	return b
}

// An attempt that meets refused connections fails with ErrUnsent.
func TestRefusedConnectionsSendNothing(t *testing.T) {
	eachOpener(t, func(t *testing.T, o opener) {
		for what, opts := range map[string]Options{"scripts": {}, "no scripts": {Scripts: ScriptsOff}} {
			t.Run(what, func(t *testing.T) {
				faultproxy.AwaitUnsent(t, stopped(t, o, opts), func() driver.Request { return request("", driver.Exclusive) })
			})
		}
	})
}

// Attempts at a server that is down leave no goroutines behind.
func TestManyTriesAtADeadServer(t *testing.T) { tryAtADeadServer(t, 1000) }

func TestLongManyTriesAtADeadServer(t *testing.T) { tryAtADeadServer(t, 10_000) }

func tryAtADeadServer(t *testing.T, tries int) {
	b := stopped(t, opener{"url", openOwn}, Options{})
	c, err := distlock.New(b, nil)
	if err != nil {
		t.Fatal(err)
	}
	before, most := testkit.Goroutines(), 0
	for i := range tries {
		if _, err := c.Mutex(fmt.Sprint(i)).TryLock(t.Context()); !errors.Is(err, distlock.ErrUnavailable) {
			t.Fatalf("try %d: %v", i, err)
		}
		most = max(most, testkit.Goroutines()-before)
	}
	if most > 100 {
		t.Errorf("%d goroutines", most)
	}
	// The first tries may have met the connection that was just lost.
	if err := c.Close(); err != nil {
		t.Logf("Close: %v", err)
	}
}
