package pglock

import (
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/must"
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

// A client's certificate that ends is named with its file; once the file is renewed, everything goes on.
func TestClientCertificatesAreReadAgain(t *testing.T) {
	t.Parallel()
	pg, url, dir := withClientCertificates(t)
	writeOwn(t, dir, -time.Minute)
	_, err := Open(t.Context(), url)
	wantEnded(t, err, dir)
	writeOwn(t, dir, time.Hour)
	b, r := open(t, url), request("lock")
	take(t, b, r)
	writeOwn(t, dir, -time.Minute)
	pg.Exec(t, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname = '"+databaseOf(t, url)+"'")
	eventually(t, "the certificate is refused", func() bool {
		err = b.Renew(t.Context(), []driver.Hold{r.Hold})[0]
		return err != nil && strings.Contains(err.Error(), " ended at ")
	})
	wantEnded(t, err, dir)
	if driver.Final(err) || errors.Is(err, driver.ErrLost) {
		t.Errorf("%v, want an unknown outcome", err)
	}
	must.OK(t, os.WriteFile(filepath.Join(dir, "key.pem"), []byte("half a ke"), 0o600))
	eventually(t, "a file can't be used", func() bool {
		err = b.Renew(t.Context(), []driver.Hold{r.Hold})[0]
		return err != nil && strings.Contains(err.Error(), "can't be used")
	})
	writeOwn(t, dir, time.Hour)
	release(t, b, r)
}

// A certificate of half a minute is renewed on the disk, under a holder, a waiter and an election, and the server ends all
// connections.
func TestLongClientCertificateIsRenewed(t *testing.T) {
	t.Parallel()
	pg, url, dir := withClientCertificates(t)
	const life = 30 * time.Second // a busy machine needs some of that to begin
	writeOwn(t, dir, life)
	began := time.Now()
	outlive(t, url, true, func() {
		time.Sleep(life / 2)
		writeOwn(t, dir, time.Hour)
		time.Sleep(time.Until(began.Add(life + time.Second)))
		pg.Exec(t, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname = '"+databaseOf(t, url)+"'")
	})
}

// withClientCertificates starts a server that wants certificates. The URL's are in the folder.
func withClientCertificates(t *testing.T) (pg *testserver.PostgresServer, url, dir string) {
	t.Helper()
	pg = testserver.Postgres(t, testserver.PostgresOptions{})
	dir = t.TempDir()
	url = with(t, pg.Database(t), "create", "true", "sslmode", "verify-full", "sslrootcert", useTLS(t, pg),
		"sslcert", filepath.Join(dir, "cert.pem"), "sslkey", filepath.Join(dir, "key.pem"))
	writeOwn(t, dir, time.Hour)
	hba := "hostnossl all all 127.0.0.1/32 md5\nhostssl all all 127.0.0.1/32 md5 clientcert=verify-ca\n"
	must.OK(t, os.WriteFile(pg.Ask(t, "SHOW hba_file"), []byte(hba), 0o600))
	pg.Exec(t, "SELECT pg_reload_conf()")
	eventually(t, "the server wants certificates", func() bool {
		without, err := Open(t.Context(), with(t, url, "sslcert", "", "sslkey", ""))
		if err == nil {
			without.Close()
			return false
		}
		b, err := Open(t.Context(), url)
		return err == nil && b.Close() == nil
	})
	return pg, url, dir
}

// writeOwn writes a client's certificate that ends after life.
func writeOwn(t *testing.T, dir string, life time.Duration) {
	t.Helper()
	own := must.Get(testcert.Own())(t)
	pair, err := own.Sign(func(c *x509.Certificate) { c.NotAfter = time.Now().Add(life) })
	if err == nil {
		_, err = pair.Write(dir)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func wantEnded(t *testing.T, err error, dir string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), "the certificate in "+filepath.Join(dir, "cert.pem")+" ended at 20") {
		t.Errorf("%v, want the file and the end of the certificate", err)
	}
}

// useTLS gives a server a certificate, and returns the file of its root certificates.
func useTLS(t *testing.T, pg *testserver.PostgresServer) (roots string) {
	t.Helper()
	own := must.Get(testcert.Own())(t)
	show(t, pg, own.Pair)
	roots = own.Files(t).Cert
	ca := filepath.Join(pg.Dir(), "ca.pem")
	must.OK(t, errors.Join(os.WriteFile(ca, own.Cert, 0o600), likeOwner(pg.Dir(), ca)))
	pg.Exec(t, fmt.Sprintf("ALTER SYSTEM SET ssl_cert_file = '%s/cert.pem'", pg.Dir()), fmt.Sprintf("ALTER SYSTEM SET ssl_key_file = '%s/key.pem'", pg.Dir()),
		fmt.Sprintf("ALTER SYSTEM SET ssl_ca_file = '%s'", ca), "ALTER SYSTEM SET ssl = on", "SELECT pg_reload_conf()")
	return roots
}

// show writes the files of a server's certificate, which it reads when it reads its configuration.
func show(t *testing.T, pg *testserver.PostgresServer, p testcert.Pair) {
	t.Helper()
	f, err := p.Write(pg.Dir())
	must.OK(t, errors.Join(err, likeOwner(pg.Dir(), f.Cert), likeOwner(pg.Dir(), f.Key)))
}

// tryCertificates makes the server want a certificate of its users, beside the password.
func tryCertificates(t *testing.T, pg *testserver.PostgresServer, url string) {
	t.Helper()
	hba := "hostnossl all all 127.0.0.1/32 md5\nhostssl all all 127.0.0.1/32 md5 clientcert=verify-ca\n"
	must.OK(t, os.WriteFile(pg.Ask(t, "SHOW hba_file"), []byte(hba), 0o600))
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
