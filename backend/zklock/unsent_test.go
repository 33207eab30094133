package zklock

import (
	"strings"
	"testing"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/faultproxy"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// An attempt that meets refused connections fails with ErrUnsent.
func TestRefusedConnectionsSendNothing(t *testing.T) {
	srv := testserver.SharedZooKeeper(t)
	for what, queue := range map[string]bool{"try": false, "wait": true} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			p := faultproxy.New(t, srv.Addr())
			b := open(t, strings.Replace(srv.URL(), srv.Addr(), p.Addr(), 1))
			acquire(t, b, request("", driver.Exclusive))
			p.Refuse()
			faultproxy.AwaitUnsent(t, b, func() driver.Request {
				r := request("", driver.Exclusive)
				r.Queue = queue
				return r
			})
		})
	}
}
