package netaddr

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testcert"
)

// issue signs a certificate that ends after life.
func issue(t *testing.T, life time.Duration) (*testcert.Authority, testcert.Pair) {
	t.Helper()
	ca := must.Get(testcert.NewAuthority())(t)
	pair := must.Get(ca.Sign(func(c *x509.Certificate) { c.NotAfter = time.Now().Add(life) }))(t)
	return ca, pair
}

// Files are read again for each connection; what does not fit is not used.
func TestCertificatesAreReadAgain(t *testing.T) {
	dir := t.TempDir()
	var files testcert.Files
	authority := filepath.Join(dir, "ca.pem")
	renew := func(life time.Duration) {
		t.Helper()
		ca, pair := issue(t, life)
		files = must.Get(pair.Write(dir))(t)
		must.OK(t, os.WriteFile(authority, ca.Cert, 0o600))
	}
	renew(time.Hour)
	u := must.Get(driver.ParseURL("x://h?" + "ca=" + authority + "&cert=" + files.Cert + "&key=" + files.Key))(t)
	c := must.Get(ReadCertificates(driver.NewParams(u)))(t)
	first := c.Config()
	if again := c.Config(); len(again.Certificates) != 1 || !again.RootCAs.Equal(first.RootCAs) {
		t.Errorf("%d certificates", len(again.Certificates))
	}

	_, half := issue(t, time.Hour)
	must.OK(t, os.WriteFile(files.Key, half.Key, 0o600))
	if !c.Config().Certificates[0].Leaf.Equal(first.Certificates[0].Leaf) {
		t.Error("half a pair is used")
	}
	if hint := c.Hint(io.EOF); !strings.Contains(hint, files.Key) {
		t.Errorf("half a pair: %q", hint)
	}

	renew(-time.Minute)
	second := c.Config()
	if second.Certificates[0].Leaf.Equal(first.Certificates[0].Leaf) || second.RootCAs.Equal(first.RootCAs) {
		t.Error("the files are not read again")
	}
	if hint := c.Hint(io.EOF); !strings.Contains(hint, files.Cert) || !strings.Contains(hint, second.Certificates[0].Leaf.NotAfter.Format(time.RFC3339)) {
		t.Errorf("a certificate that has ended: %q", hint)
	}
	must.OK(t, os.Remove(authority))
	if !c.Config().RootCAs.Equal(second.RootCAs) || !strings.Contains(c.Hint(io.EOF), authority) {
		t.Errorf("a file that is missing: %q", c.Hint(io.EOF))
	}
}

func TestNoCertificates(t *testing.T) {
	var none *Certificates
	if none.Config() != nil || none.Hint(io.EOF) != "" || StaticCertificates(nil) != nil {
		t.Error("no TLS is TLS")
	}
	own := &tls.Config{ServerName: "a"}
	if got := StaticCertificates(own).Config(); got.ServerName != "a" || got == own {
		t.Errorf("%v", got)
	}
}

func TestLogin(t *testing.T) {
	path := filepath.Join(t.TempDir(), "password")
	login := func(url string) (Credentials, error) {
		u := must.Get(driver.ParseURL(url))(t)
		p := driver.NewParams(u)
		c, err := Login(u, p)
		return c, errors.Join(err, p.Err())
	}
	want := func(c Credentials, user, password string) {
		t.Helper()
		u, p, err := c(context.Background())
		if u != user || p != password || err != nil {
			t.Errorf("%q, %q, %v; want %q, %q", u, p, err, user, password)
		}
	}
	c := must.Get(login("x://app:secret@h"))(t)
	want(c, "app", "secret")
	if _, err := login("x://app@h?password_file=" + path); !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), path) {
		t.Errorf("a file that is not there: %v", err)
	}
	write := func(s string) {
		must.OK(t, os.WriteFile(path, []byte(s), 0o600))
	}
	write("one \n")
	if _, err := login("x://app:secret@h?password_file=" + path); !errors.Is(err, driver.ErrInvalid) || strings.Contains(err.Error(), "secret") {
		t.Errorf("two passwords: %v", err)
	}
	c = must.Get(login("x://app@h?password_file=" + path))(t)
	want(c, "app", "one ")
	write("two\r\n")
	want(c, "app", "two")
	write("\n")
	if _, _, err := c(context.Background()); err == nil || errors.Is(err, driver.ErrInvalid) {
		t.Errorf("an empty file: %v", err)
	}
}
