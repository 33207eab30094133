package etcdlock

import (
	"context"
	"fmt"
	"net"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/faultproxy"
	"github.com/distlock/distlock/internal/testkit/locktest"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// A client with thousands of holds whose connections have died in silence renews them over a few new ones, which its calls share.
func TestHoldsShareANewConnection(t *testing.T) {
	t.Parallel()
	p := faultproxy.New(t, testserver.SharedEtcd(t).Addr())
	b := openThrough(t, []*faultproxy.Proxy{p}, nil)
	var holds []driver.Hold
	for range 640 { // 40 streams
		r := request("", driver.Exclusive)
		must.Get(b.Acquire(t.Context(), r))(t)
		holds = append(holds, r.Hold)
	}
	var old atomic.Bool
	var dials atomic.Int32
	old.Store(true)
	p.Sever(func(net.Conn) bool { return old.Load() || dials.Add(1) < 0 })
	old.Store(false)
	ctx, cancel := context.WithTimeout(t.Context(), 12*time.Second)
	defer cancel()
	for _, err := range b.Renew(ctx, holds) {
		expect.OK(t, err)
	}
	if n := dials.Load(); n < 1 || n > 8 {
		t.Errorf("%d new connections", n)
	}
}

// The system probes a connection without calls, so that a NAT does not forget it.
func TestIdleConnectionsAreKeptAlive(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux shows the timers of connections")
	}
	t.Parallel()
	p := faultproxy.New(t, testserver.SharedEtcd(t).Addr())
	mustOpen(t, "etcd://"+p.Addr())
	_, port, _ := net.SplitHostPort(p.Addr())
	n := must.Get(strconv.Atoi(port))(t)
	to := fmt.Sprintf(" 0100007F:%04X 01 ", n) // connections to the proxy
	locktest.Eventually(t, "a connection is kept alive", func() bool {
		for line := range strings.Lines(string(must.Get(os.ReadFile("/proc/net/tcp"))(t))) {
			timer, due, _ := strings.Cut(strings.Fields(line)[5], ":")
			ticks, _ := strconv.ParseInt(due, 16, 64) // of a hundredth of a second
			if strings.Contains(line, to) && timer == "02" && ticks <= int64(idleKeepAlive/(10*time.Millisecond)) {
				return true
			}
		}
		return false
	})
}
