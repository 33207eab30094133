package zklock

import (
	"testing"

	"github.com/distlock/distlock/internal/testkit/testcert"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// ZooKeeper reads its certificate at its start, so bad ones are shown by an entrance before it.
func TestCertificates(t *testing.T) {
	t.Parallel()
	srv := testserver.ZooKeeper(t, testserver.ZooKeeperOptions{TLS: true, ClientCert: true})
	testcert.Try(t, testcert.Server{Show: func(t *testing.T, shown testcert.Pair, good bool) string {
		addr := srv.SecureAddr()
		if !good {
			addr = testcert.Entrance(t, srv.Addr(), shown)
		}
		return "zks://" + addr + "?timeout=2m"
	}})
	failsToOpen(t, "zk://"+srv.SecureAddr()+"?timeout=30s", false, srv.SecureAddr(), "TLS")
}
