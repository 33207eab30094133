package zklock

import (
	"testing"
	"time"

	"github.com/distlock/distlock/internal/testkit/faultproxy"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// On a slow network the shortest session ends before it is asked anything: Open tries
// again.
func TestOpenWhereShortSessionsEnd(t *testing.T) {
	t.Parallel()
	srv := testserver.SharedZooKeeper(t) // with sessions of 0.4 s
	p := faultproxy.New(t, srv.Addr())
	p.Delay(time.Second)
	time.AfterFunc(1500*time.Millisecond, func() { p.Delay(0) })
	b, err := Open(t.Context(), "zk://"+p.Addr()+"?timeout=1m")
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
}
