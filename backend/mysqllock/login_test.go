package mysqllock

import (
	"context"
	"crypto/x509"
	"errors"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/locktest"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testcert"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// fileLogin makes a user whose password is in a file.
func fileLogin(t *testing.T) (rawURL, file string, admin administrator) {
	t.Helper()
	user, admin := userOf(t, Row)
	u := must.Get(url.Parse(user))(t)
	file = filepath.Join(t.TempDir(), "password")
	writePassword(t, file, secret)
	u.User = url.User(u.User.Username())
	u.RawQuery += "&password_file=" + file
	return u.String(), file, admin
}

func writePassword(t *testing.T, file, password string) {
	t.Helper()
	must.OK(t, os.WriteFile(file, []byte(password+"\n"), 0o600))
}

// A password is rotated under a holder, a waiter and an election: none of them ends, and nothing is opened anew.
func TestPasswordIsRotated(t *testing.T) {
	t.Parallel()
	rawURL, file, admin := fileLogin(t)
	watcher := connect(t, rawURL)
	take(t, watcher, request("watched", long))
	locktest.Outlive(t, true, func() driver.Backend { return connect(t, rawURL) }, func(*locktest.Programs) {
		admin.do("ALTER USER "+admin.user+" IDENTIFIED BY 'another'", "KILL USER "+admin.user)
		until(t, "the login is refused", func() bool {
			_, err := watcher.Acquire(t.Context(), request("other", long))
			if err == nil {
				return false
			}
			if driver.Final(err) || strings.Contains(err.Error(), secret) {
				t.Fatalf("a refused login: %v", err)
			}
			return errors.Is(err, driver.ErrUnsent) && number(err) == errWrongUser
		})
		writePassword(t, file, "another")
	})
}

// The password's file is named when it is missing at Open, and later.
func TestPasswordFileIsMissing(t *testing.T) {
	t.Parallel()
	rawURL, file, admin := fileLogin(t)
	b := connect(t, rawURL)
	must.OK(t, os.Remove(file))
	says(t, rawURL, file)
	admin.do("KILL USER " + admin.user)
	until(t, "the file is named", func() bool {
		_, err := b.Acquire(t.Context(), request("x", long))
		if err != nil && driver.Final(err) {
			t.Fatal(err)
		}
		return err != nil && strings.Contains(err.Error(), file)
	})
}

// A client certificate ends while its successor is in its place: the next connection shows that. Without a successor the
// error says what has ended.
func TestCertificateIsRenewedOnDisk(t *testing.T) {
	t.Parallel()
	own := must.Get(testcert.Own())(t)
	ca, shown := own.Files(t).Cert, own.Files(t)
	srv := testserver.MariaDB(t, testserver.MariaDBOptions{Args: []string{"--ssl-ca=" + ca, "--ssl-cert=" + shown.Cert, "--ssl-key=" + shown.Key}})
	u := must.Get(url.Parse(srv.Database(t)))(t)
	srv.Exec(t, "CREATE USER certified@'%' IDENTIFIED BY '"+secret+"' REQUIRE X509", "GRANT ALL ON "+u.Path[1:]+".* TO certified@'%'")
	u.User = url.UserPassword("certified", secret)
	sign := func(dir string, life time.Duration) (files testcert.Files, ends time.Time) {
		t.Helper()
		ends = time.Now().Add(life).Truncate(time.Second)
		pair, err := own.Sign(func(c *x509.Certificate) { c.NotAfter = ends })
		if err == nil {
			files, err = pair.Write(dir)
		}
		if err != nil {
			t.Fatal(err)
		}
		return files, ends
	}
	open := func(dir string) (*Backend, testcert.Files, time.Time) {
		t.Helper()
		files, ends := sign(dir, 25*time.Second) // a busy machine needs some of that to begin
		u.RawQuery = "create=true&tls=true&ca=" + ca + "&cert=" + files.Cert + "&key=" + files.Key
		return connect(t, u.String()), files, ends
	}
	renewed, ended := t.TempDir(), t.TempDir()
	good, _, _ := open(renewed)
	bad, files, ends := open(ended)
	r := request("x", long)
	take(t, good, r)
	take(t, bad, request("y", long))
	sign(renewed, time.Hour)
	time.Sleep(time.Until(ends.Add(time.Second)))
	srv.Exec(t, "KILL USER certified")
	until(t, "the hold is renewed", func() bool {
		err := good.Renew(t.Context(), []driver.Hold{r.Hold})[0]
		if errors.Is(err, driver.ErrLost) {
			t.Fatal(err)
		}
		return err == nil
	})
	until(t, "the certificate's file and end are named", func() bool {
		_, err := bad.Acquire(t.Context(), request("z", long))
		if err != nil && driver.Final(err) {
			t.Fatal(err)
		}
		return err != nil && strings.Contains(err.Error(), files.Cert) && strings.Contains(err.Error(), ends.Format(time.RFC3339))
	})
}

// A program's own function is asked at each login.
func TestCredentials(t *testing.T) {
	t.Parallel()
	user, admin := userOf(t, Row)
	u := must.Get(url.Parse(user))(t)
	u.User = url.User(u.User.Username())
	var token atomic.Value
	token.Store(secret)
	broken := errors.New("no token today")
	b, err := OpenWith(t.Context(), u.String(), &OpenOptions{Credentials: func(context.Context) (string, string, error) {
		if token.Load() == "" {
			return "", "", broken
		}
		return "", token.Load().(string), nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	r := request("x", long)
	take(t, b, r)
	token.Store("")
	admin.do("ALTER USER "+admin.user+" IDENTIFIED BY 'another'", "KILL USER "+admin.user)
	until(t, "the function's error is passed on", func() bool {
		err := b.Renew(t.Context(), []driver.Hold{r.Hold})[0]
		if errors.Is(err, driver.ErrLost) {
			t.Fatal(err)
		}
		return errors.Is(err, broken)
	})
	token.Store("another")
	renews(t, b, r, nil)
}
