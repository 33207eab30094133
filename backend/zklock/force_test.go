package zklock

import (
	"context"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/faultproxy"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// The hold of another process does not end with the session that was to delete its nodes.
func TestForcedReleaseWhoseSessionEnds(t *testing.T) {
	for _, mode := range []driver.Mode{driver.Exclusive, driver.Counted} {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			holder := open(t, testserver.SharedZooKeeper(t).URL())
			p := faultproxy.New(t, testserver.SharedZooKeeper(t).Addr())
			b := open(t, "zk://"+p.Addr())
			r, own := request("", mode), request("", mode)
			r.Limit = 1
			acquire(t, holder, r)
			acquire(t, b, own) // whose session is the one that it uses

			p.Delay(time.Second)
			released := make(chan error, 1)
			go func() { released <- b.Release(t.Context(), r.Hold) }()
			time.Sleep(200 * time.Millisecond) // it waits for the list of the nodes
			killSession(t, b, own)
			p.Delay(0)
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			select {
			case err := <-released:
				if err != nil {
					t.Errorf("the lock is held, and a forced release answers %v", err)
				}
			case <-ctx.Done():
				t.Fatal("no answer")
			}
			acquire(t, holder, func() driver.Request { n := r; n.Owner = driver.NewOwner(); return n }())
		})
	}
}
