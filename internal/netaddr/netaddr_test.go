package netaddr

import (
	"encoding/pem"
	"errors"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/must"
)

func TestAddresses(t *testing.T) {
	for _, c := range []struct{ url, want string }{
		{"x://", "localhost:7"},
		{"x://h:1", "h:1"},
		{"x://h,[::1]:9,b", "h:7 [::1]:9 b:7"},
		{"x:h:1", ""},
		{"x://h:0", ""},
		{"x://h,g:65536", ""},
	} {
		u := must.Get(driver.ParseURL(c.url))(t)
		addrs, err := Of(u, "7")
		if strings.Join(addrs, " ") != c.want || (c.want == "") != errors.Is(err, driver.ErrInvalid) {
			t.Errorf("%s: %q, %v", c.url, addrs, err)
		}
	}
	addrs := []string{"b:1", "a:1", "b:1"}
	if got := Listed(addrs); got != "a:1,b:1" || !slices.Equal(addrs, []string{"b:1", "a:1", "b:1"}) {
		t.Errorf("%q, and %q", got, addrs)
	}
}

func TestTLS(t *testing.T) {
	srv := httptest.NewTLSServer(nil)
	defer srv.Close()
	good, bad := filepath.Join(t.TempDir(), "ca.pem"), filepath.Join(t.TempDir(), "none.pem")
	block := &pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw}
	must.OK(t, os.WriteFile(good, pem.EncodeToMemory(block), 0o600))
	for query, ok := range map[string]bool{
		"": true, "ca=" + good: true, "ca=" + bad: false, "cert=" + good: false, "cert=" + good + "&key=" + good: false,
	} {
		u := must.Get(driver.ParseURL("x://h?" + query))(t)
		p := driver.NewParams(u)
		config, err := ReadCertificates(p)
		if (err == nil) != ok || err != nil && !errors.Is(err, driver.ErrInvalid) || config.Config() == nil || p.Err() != nil {
			t.Errorf("%q: %v, %v", query, err, p.Err())
		}
		if err := NoTLS(u, "xs"); (err == nil) != (query == "") {
			t.Errorf("%q without TLS: %v", query, err)
		}
	}
	u, _ := driver.ParseURL("x://h?servername=a")
	if err := NoTLS(u, "xs"); !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), "xs") {
		t.Errorf("a name without TLS: %v", err)
	}
}
