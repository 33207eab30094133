package etcdlock

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/faultproxy"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// forget makes a network forget the connections that there are, as a NAT or a firewall does:
// they stay open and are silent. New ones pass.
func forget(p *faultproxy.Proxy) {
	var old atomic.Bool
	old.Store(true)
	p.Sever(func(net.Conn) bool { return old.Load() })
	old.Store(false)
}

// A holder whose connections are silent renews on new ones. The client here never notices by
// itself: it does not ask whether its connections live.
func TestRenewalOnForgottenConnections(t *testing.T) {
	for name, addrs := range map[string][]string{
		"server":  {testserver.SharedEtcd(t).Addr()},
		"cluster": testserver.SharedEtcdCluster(t).Addrs(),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ways := proxiesTo(t, addrs)
			b := openThrough(t, ways, nil)
			r := request("", driver.Exclusive)
			acquire(t, b, r)
			for range 2 {
				for _, p := range ways {
					forget(p)
				}
				eventually(t, "the hold is renewed", func() bool {
					ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
					defer cancel()
					return b.Renew(ctx, []driver.Hold{r.Hold})[0] == nil
				})
			}
			for _, p := range ways {
				p.Pass() // for Close
			}
		})
	}
}
