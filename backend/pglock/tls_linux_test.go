package pglock

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/distlock/distlock/internal/testkit/testcert"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// pgx handles the TLS parameters of a URL. Dead connections are detected below TLS. Bad certificates are refused.
func TestCertificates(t *testing.T) {
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
	tryCertificates(t, pg, url)
}

// useTLS gives a server a certificate, and returns the file of its root certificates.
func useTLS(t *testing.T, pg *testserver.PostgresServer) (roots string) {
	t.Helper()
	own, err := testcert.Own()
	if err != nil {
		t.Fatal(err)
	}
	show(t, pg, own.Pair)
	roots = own.Files(t).Cert
	ca := filepath.Join(pg.Dir(), "ca.pem")
	if err := errors.Join(os.WriteFile(ca, own.Cert, 0o600), likeOwner(pg.Dir(), ca)); err != nil {
		t.Fatal(err)
	}
	pg.Exec(t, fmt.Sprintf("ALTER SYSTEM SET ssl_cert_file = '%s/cert.pem'", pg.Dir()), fmt.Sprintf("ALTER SYSTEM SET ssl_key_file = '%s/key.pem'", pg.Dir()),
		fmt.Sprintf("ALTER SYSTEM SET ssl_ca_file = '%s'", ca), "ALTER SYSTEM SET ssl = on", "SELECT pg_reload_conf()")
	return roots
}

// show writes the files of a server's certificate, which it reads when it reads its configuration.
func show(t *testing.T, pg *testserver.PostgresServer, p testcert.Pair) {
	t.Helper()
	f, err := p.Write(pg.Dir())
	if err := errors.Join(err, likeOwner(pg.Dir(), f.Cert), likeOwner(pg.Dir(), f.Key)); err != nil {
		t.Fatal(err)
	}
}

// tryCertificates makes the server want a certificate of its users, beside the password.
func tryCertificates(t *testing.T, pg *testserver.PostgresServer, url string) {
	t.Helper()
	hba := "hostnossl all all 127.0.0.1/32 md5\nhostssl all all 127.0.0.1/32 md5 clientcert=verify-ca\n"
	if err := os.WriteFile(pg.Ask(t, "SHOW hba_file"), []byte(hba), 0o600); err != nil {
		t.Fatal(err)
	}
	testcert.Try(t, testcert.Server{
		CA: "sslrootcert", Cert: "sslcert", Key: "sslkey", ServerName: "-",
		Show: func(t *testing.T, shown testcert.Pair, _ bool) string {
			show(t, pg, shown)
			before := pg.Ask(t, "SELECT pg_conf_load_time()::text")
			pg.Exec(t, "SELECT pg_reload_conf()")
			eventually(t, "the configuration is read", func() bool { return pg.Ask(t, "SELECT pg_conf_load_time()::text") != before })
			return with(t, url, "connect_timeout", "120")
		},
	})
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
