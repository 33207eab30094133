package redislock

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// A server that was a master and has become a replica, without cutting a connection, knows
// nothing of what is held. It may not say that all is lost.
func TestLossIsAMastersWord(t *testing.T) {
	master := testserver.Redis(t, "--repl-diskless-sync-delay", "0")
	host, port, err := net.SplitHostPort(master.Addr())
	if err != nil {
		t.Fatal(err)
	}
	eachOpener(t, func(t *testing.T, o opener) {
		srv := testserver.Redis(t)
		backends := map[string]*Backend{
			"string":   o.open(t, srv.Addr(), Options{Layout: String}),
			"redisson": o.open(t, srv.Addr(), Options{Layout: Redisson}),
			"none":     o.open(t, srv.Addr(), Options{Scripts: ScriptsOff}),
		}
		type held struct {
			what string
			b    *Backend
			r    driver.Request
		}
		var list []held
		for name, b := range backends {
			for _, mode := range []driver.Mode{driver.Exclusive, driver.Write, driver.Read, driver.Counted} {
				if !b.Caps().Modes.Has(mode) {
					continue
				}
				r := request("", mode)
				acquire(t, b, r)
				if err := b.Release(t.Context(), request("", mode).Hold); !errors.Is(err, driver.ErrLost) {
					t.Errorf("a master, of nothing: %v", err)
				}
				list = append(list, held{fmt.Sprint(name, " ", mode), b, r})
			}
		}
		if _, err := srv.Do("REPLICAOF", host, port); err != nil {
			t.Fatal(err)
		}
		awaitReplica(t, master)
		c := raw(t, srv.Addr())
		eventually(t, "the replica has its master's data", func() bool { return c.Exists(t.Context(), list[0].r.Name).Val() == 0 })
		var wg sync.WaitGroup
		for _, h := range list {
			for what, err := range map[string]func() error{
				"renew":   func() error { return h.b.Renew(t.Context(), []driver.Hold{h.r.Hold})[0] },
				"release": func() error { return h.b.Release(t.Context(), h.r.Hold) },
			} {
				wg.Go(func() {
					err := err()
					unknown(t, h.what+": "+what, err)
					if err == nil || !strings.Contains(err.Error(), "the server is a replica") {
						t.Errorf("%s: %s: %v", h.what, what, err)
					}
				})
			}
		}
		wg.Wait()
	})
}
