package zklock

import (
	"errors"
	"testing"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/faultproxy"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// Whatever is lost on the way, a downgrade that is asked for until there is an answer
// leaves a reader and nothing else.
func TestDowngradeWithoutAnAnswer(t *testing.T) {
	for what, lose := range map[string]func(*faultproxy.Proxy){
		"reader's request": func(p *faultproxy.Proxy) { p.LoseRequest(readKind.base()) },
		"reader's answer":  func(p *faultproxy.Proxy) { p.LoseReply(readKind.base()) },
		"writer's request": func(p *faultproxy.Proxy) { p.LoseRequest(writeKind.base()) },
		"writer's answer":  func(p *faultproxy.Proxy) { p.LoseReply(writeKind.base()) },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			p := faultproxy.New(t, testserver.SharedZooKeeper(t).Addr())
			a, b := open(t, "zk://"+p.Addr()), open(t, testserver.SharedZooKeeper(t).URL())
			op := admin(t)
			r := request("", driver.Write)
			r.OnLost = func() { t.Error("a downgrade is no loss") }
			before := acquire(t, a, r)
			lose(p)
			r.Mode = driver.Read
			g, err := a.Acquire(t.Context(), r)
			for ; err != nil; g, err = a.Acquire(t.Context(), r) {
				if driver.Final(err) || errors.Is(err, driver.ErrLost) {
					t.Fatal(err)
				}
			}
			if p.Lost() != 1 || g.Fence <= before.Fence {
				t.Errorf("%d lost; fence %d after %d", p.Lost(), g.Fence, before.Fence)
			}
			other := request(r.Name, driver.Read)
			acquire(t, b, other)
			release(t, b, other)
			path := pathOf(r.Name)
			if left := nodes(t, op, path); len(left) != 1 || left[0].kind != readKind || left[0].owner != r.Owner {
				t.Errorf("a reader has %+v", left)
			}
			release(t, a, r)
			if left := nodes(t, op, path); len(left) != 0 {
				t.Errorf("left: %+v", left)
			}
		})
	}
}
