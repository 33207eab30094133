package driver_test

import (
	"strings"
	"testing"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/expect"
)

func TestWhatAURLMeans(t *testing.T) {
	for _, test := range []struct{ url, says string }{
		{"localhost:6379", "did you mean redis://localhost:6379?"},
		{"127.0.0.1:5432", "did you mean postgres://127.0.0.1:5432?"},
		{"[::1]:2379", "did you mean etcd://[::1]:2379?"},
		{"db-1.example:3306/app", "did you mean mysql://db-1.example:3306/app?"},
		{"/var/lib/app/locks.db", "did you mean sqlite:/var/lib/app/locks.db?"},
		{"mariadb://user:s3cr3t@h/app", "did you mean mysql://…?"},
		{"sqlite3:x.db", "did you mean sqlite:…?"},
		{"localhost:1234", `unknown URL scheme "localhost"`},
		{"user:s3cr3t@h:6379", ""},
		{"mem:6379", `"mem" is not registered`},
	} {
		_, err := driver.Open(t.Context(), test.url)
		expect.Be(t, err, driver.ErrInvalid, test.url)
		if err != nil && (!strings.Contains(err.Error(), test.says) || strings.Contains(err.Error(), "s3cr3t")) {
			t.Errorf("%s: got %q; want %q", test.url, err, test.says)
		}
	}
}
