package pglock

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/distlock/distlock/internal/testkit/testserver"
)

// pgx handles the TLS parameters of a URL. Dead connections are detected below TLS.
func TestTLS(t *testing.T) {
	t.Parallel()
	pg := testserver.Postgres(t, testserver.PostgresOptions{})
	url := with(t, pg.Database(t), "create", "true", "sslmode", "verify-full")
	if _, err := Open(t.Context(), url); err == nil {
		t.Fatal("a server without TLS was accepted")
	}
	roots := useTLS(t, pg)
	eventually(t, "the server speaks TLS", func() bool {
		b, err := Open(t.Context(), with(t, url, "sslmode", "require"))
		return err == nil && b.Close() == nil
	})
	if _, err := Open(t.Context(), url); err == nil {
		t.Error("a certificate of an unknown authority was accepted")
	}
	b := open(t, with(t, url, "sslrootcert", roots))
	crowd(t, b)
	if pg.Ask(t, "SELECT count(*)::text FROM pg_stat_ssl s JOIN pg_stat_activity a USING (pid) WHERE s.ssl AND datname = $1", databaseOf(t, url)) == "0" {
		t.Error("no connection uses TLS")
	}
	pg.Kill()
	pg.Start()
	crowd(t, b)
}

// useTLS gives a server a certificate, and returns the file of its root certificates.
func useTLS(t *testing.T, pg *testserver.PostgresServer) (roots string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	draft := &x509.Certificate{
		SerialNumber: big.NewInt(1), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	cert, err := x509.CreateCertificate(rand.Reader, draft, draft, &key.PublicKey, key)
	secret, err2 := x509.MarshalPKCS8PrivateKey(key)
	if err := errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	files := map[string]*pem.Block{"server.crt": {Type: "CERTIFICATE", Bytes: cert}, "server.key": {Type: "PRIVATE KEY", Bytes: secret}}
	for name, block := range files {
		file := filepath.Join(pg.Dir(), name)
		if err := errors.Join(os.WriteFile(file, pem.EncodeToMemory(block), 0o600), likeOwner(pg.Dir(), file)); err != nil {
			t.Fatal(err)
		}
	}
	pg.Exec(t, fmt.Sprintf("ALTER SYSTEM SET ssl_cert_file = '%s/server.crt'", pg.Dir()), fmt.Sprintf("ALTER SYSTEM SET ssl_key_file = '%s/server.key'", pg.Dir()),
		"ALTER SYSTEM SET ssl = on", "SELECT pg_reload_conf()")
	return filepath.Join(pg.Dir(), "server.crt")
}

// likeOwner gives a file the owner of a folder.
func likeOwner(dir, file string) error {
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return errors.New("no owner")
	}
	return os.Chown(file, int(owner.Uid), int(owner.Gid))
}
