package etcdlock

import (
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/faultproxy"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// An attempt without a lease to use fails with ErrUnsent: no server keeps the shared one alive.
func TestRefusedConnectionsSendNothing(t *testing.T) {
	t.Parallel()
	ways := proxiesTo(t, []string{testserver.SharedEtcd(t).Addr()})
	b := openThrough(t, ways, nil)
	brief := func() driver.Request {
		r := request("", driver.Exclusive)
		r.TTL = 3 * time.Second
		return r
	}
	acquire(t, b, brief())
	ways[0].Refuse()
	faultproxy.AwaitUnsent(t, b, brief)
}
