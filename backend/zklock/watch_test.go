package zklock

import (
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/testserver"
	"github.com/distlock/distlock/internal/zk"
)

// A node may end before its watch is noted: the wait is armed anew then.
func TestNodeEndsWhileItIsArmed(t *testing.T) {
	b := open(t, testserver.SharedZooKeeper(t).URL())
	s, err := b.session(t.Context(), time.Second)
	if err != nil {
		t.Fatal(err)
	}
	w := &watch{b: b, ready: make(chan struct{}, 1), r: driver.Request{Hold: driver.Hold{Name: t.Name(), TTL: time.Second}}}
	defer w.close()
	_, _, zw, err := s.conn.GetW(t.Context(), "/", w.happened)
	if err != nil {
		t.Fatal(err)
	}
	w.happened(zk.Event{})
	w.keep(zw)
	if !w.idle() {
		t.Error("what has happened is waited for")
	}
}
