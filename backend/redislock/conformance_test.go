package redislock

import (
	"context"
	"os"
	"testing"

	"github.com/distlock/distlock/backend/redislock/internal/layouts"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/drivertest"
	"github.com/distlock/distlock/internal/testkit/faultproxy"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

func TestMain(m *testing.M) { os.Exit(testserver.Run(m)) }

func TestConformance(t *testing.T) { conformEach(t, openers[0]) }

// The suite with a user's client. A URL uses go-redis too.
func TestLongConformance(t *testing.T) { conformEach(t, openers[1]) }

func conformEach(t *testing.T, o opener) {
	srv := testserver.SharedRedis(t)
	for _, layout := range []Layout{String, Redisson} {
		t.Run(o.name+"/"+string(layout), func(t *testing.T) {
			t.Parallel()
			conform(t, srv, o, Options{Layout: layout})
		})
	}
}

// isReserved says which names a single server refuses in either layout.
func isReserved(name string) bool { return layouts.Reserved(name) != "" }

// conform runs the suite, each connection through a proxy of its own.
func conform(t *testing.T, srv *testserver.RedisServer, o opener, opts Options) {
	opts.Name = "redis://proxied"
	var proxies faultproxy.Networks
	drivertest.Run(t, drivertest.Harness{
		KindsApart: opts.Layout == Redisson,
		Open: func(context.Context) (driver.Backend, error) {
			p := faultproxy.New(t, srv.Addr())
			b := o.open(t, p.Addr(), opts)
			proxies.Add(b, p)
			return b, nil
		},
		Cut: proxies.Cut, LoseAnswers: proxies.LoseAnswers,
		Refuses: isReserved,
	})
}

func conformLayouts(t *testing.T, srv *testserver.RedisServer) {
	for _, layout := range []Layout{String, Redisson} {
		t.Run(string(layout), func(t *testing.T) {
			t.Parallel()
			conform(t, srv, openers[0], Options{Layout: layout})
		})
	}
}

// Redis 6.2 runs scripts a little differently, and words their errors otherwise.
func TestLongOldServer(t *testing.T) {
	srv := testserver.OldRedis(t)
	conformLayouts(t, srv)
	t.Run("another kind", func(t *testing.T) {
		b, c := openOwn(t, srv.Addr(), Options{}), raw(t, srv.Addr())
		r := request("", driver.Exclusive)
		c.RPush(t.Context(), r.Name, "text")
		refused(t, b, r, driver.ErrInvalid)
	})
}

func TestLongValkey(t *testing.T) {
	srv := testserver.Valkey(t)
	conformLayouts(t, srv)
	t.Run("without scripts", func(t *testing.T) {
		t.Parallel()
		conform(t, srv, openers[0], Options{Scripts: ScriptsOff})
	})
}
