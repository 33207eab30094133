package mysqllock

import (
	"net/url"
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
	dir := t.TempDir()
	ca := own.Files(t).Cert
	f, err := own.Write(dir)
	if err != nil {
		t.Fatal(err)
	}
	srv := testserver.MariaDB(t, testserver.MariaDBOptions{Args: []string{"--ssl-ca=" + ca, "--ssl-cert=" + f.Cert, "--ssl-key=" + f.Key}})
	u, err := url.Parse(srv.Database(t))
	if err != nil {
		t.Fatal(err)
	}
	u.User, u.RawQuery = url.UserPassword("certified", "s3cret"), "tls=true&create=true&timeout=2m"
	srv.Exec(t, "CREATE USER certified@'%' IDENTIFIED BY 's3cret' REQUIRE X509", "GRANT ALL ON "+u.Path[1:]+".* TO certified@'%'")
	testcert.Try(t, testcert.Server{Show: func(t *testing.T, shown testcert.Pair, _ bool) string {
		if _, err := shown.Write(dir); err != nil {
			t.Fatal(err)
		}
		srv.Exec(t, "FLUSH SSL")
		return u.String()
	}})
}
