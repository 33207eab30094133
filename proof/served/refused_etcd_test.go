package served

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/drivertest"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// A server whose etcd refuses its user, by its login or its rights.
func TestRefusedByEtcd(t *testing.T) {
	t.Parallel()
	srv := testserver.Etcd(t, testserver.EtcdOptions{Password: "s3cret"})
	var users atomic.Int32
	for what, withdraw := range map[string]func(user string, own testserver.EtcdGrant) (restore func()){
		"login": func(user string, _ testserver.EtcdGrant) func() {
			srv.SetPassword(user, "another")
			return func() { srv.SetPassword(user, "x") }
		},
		"rights": func(user string, own testserver.EtcdGrant) func() {
			srv.RevokePrefix(user, own.Prefix)
			return func() { srv.GrantPrefix(user, own) }
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			drivertest.RunRefused(t, func(t *testing.T) drivertest.Harness {
				user := fmt.Sprint("user", users.Add(1))
				own := testserver.EtcdGrant{Prefix: user + "/", Read: true, Write: true}
				address := srv.AddUser(user, "x", own) + "/" + user + "?timeout=2m"
				p := start(t, func() driver.Backend { return open(t, address) })
				return drivertest.Harness{
					Open:     func(ctx context.Context) (driver.Backend, error) { return driver.Open(ctx, p.url()) },
					Withdraw: func() func() { return withdraw(user, own) },
				}
			})
		})
	}
}
