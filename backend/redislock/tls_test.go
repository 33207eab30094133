package redislock

import (
	"net"
	"testing"

	"github.com/distlock/distlock/internal/testkit/testcert"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

func TestCertificates(t *testing.T) {
	t.Parallel()
	own, err := testcert.Own()
	if err != nil {
		t.Fatal(err)
	}
	f, addr := own.Files(t), testserver.FreeAddr(t)
	_, port, _ := net.SplitHostPort(addr)
	srv := testserver.Redis(t, "--tls-port", port, "--tls-cert-file", f.Cert, "--tls-key-file", f.Key, "--tls-ca-cert-file", f.Cert, "--tls-auth-clients", "yes")
	testcert.Try(t, testcert.Server{Show: func(t *testing.T, shown testcert.Pair, _ bool) string {
		f := shown.Files(t)
		if _, err := srv.Do("CONFIG", "SET", "tls-cert-file", f.Cert, "tls-key-file", f.Key); err != nil {
			t.Fatal(err)
		}
		return "rediss://" + addr + "?timeout=2m"
	}})
}
