package redislock

import (
	"net"
	"testing"

	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testcert"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

func TestCertificates(t *testing.T) {
	t.Parallel()
	own := must.Get(testcert.Own())(t)
	f, addr := own.Files(t), testserver.FreeAddr(t)
	_, port, _ := net.SplitHostPort(addr)
	srv := testserver.Redis(t, "--tls-port", port, "--tls-cert-file", f.Cert, "--tls-key-file", f.Key, "--tls-ca-cert-file", f.Cert, "--tls-auth-clients", "yes")
	testcert.Try(t, testcert.Server{Show: func(t *testing.T, shown testcert.Pair, _ bool) string {
		f := shown.Files(t)
		must.Get(srv.Do("CONFIG", "SET", "tls-cert-file", f.Cert, "tls-key-file", f.Key))(t)
		return "rediss://" + addr + "?timeout=2m"
	}})
}
