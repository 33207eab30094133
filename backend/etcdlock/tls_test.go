package etcdlock

import (
	"path/filepath"
	"testing"

	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testcert"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// etcd reads its certificate anew for each connection.
func TestCertificates(t *testing.T) {
	t.Parallel()
	srv := testserver.Etcd(t, testserver.EtcdOptions{TLS: true})
	testcert.Try(t, testcert.Server{Show: func(t *testing.T, shown testcert.Pair, _ bool) string {
		file, _ := srv.Files()
		must.Get(shown.Write(filepath.Dir(file)))(t)
		return "etcds://" + srv.Addr() + "?timeout=2m"
	}})
}
