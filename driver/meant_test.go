package driver_test

import (
	"context"
	"net/url"
	"strings"
	"sync"
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
		{"localhost:1234", "want one before the address, such as redis://"},
		{"127.0.0.1:1234", "want one before the address, such as redis://"},
		{"[::1]:1234/x", "want one before the address, such as redis://"},
		{"localhost:some", `unknown URL scheme "localhost"`},
		{`"redis://:s3cr3t@h"`, "blanks or quotes around it"},
		{"'redis://:s3cr3t@h'", "blanks or quotes around it"},
		{" redis://:s3cr3t@h", "blanks or quotes around it"},
		{"redis://:s3cr3t@h\n", "blanks or quotes around it"},
		{"url=redis://:s3cr3t@h", "other text before it"},
		{"export DISTLOCK_URL=redis://:s3cr3t@h", "other text before it"},
		{"url: redis://:s3cr3t@h", "other text before it"},
		{"quorum:?member=redis://:s3cr3t@h", `"quorum" is not registered`},
		{"redis-sentinel://:s3cr3t@h/main", "did you mean redis+sentinel://…?"},
		{"redis+tls://:s3cr3t@h", "did you mean rediss://…?"},
		{"k8s://ns", "did you mean kube://…?"},
		{"file:/x.db", "did you mean sqlite:…?"},
		{"jdbc:postgresql://h/app?password=s3cr3t", "did you mean postgresql://…?"},
		{"jdbc:mariadb://h/app", "did you mean mysql://…?"},
		{"jdbc:oracle:thin:@h", `unknown URL scheme "jdbc"`},
		{"postgresql+psycopg2://u:s3cr3t@h/app", "did you mean postgresql://…?"},
		{"mariadb+pymysql://u:s3cr3t@h/app", "did you mean mysql://…?"},
		{"quorum+mysql://h/app", `unknown URL scheme "quorum+mysql"`},
		{"u:s3cr3t@tcp(h:3306)/app", "want mysql://USER:PASSWORD@HOST:PORT/DATABASE"},
		{"host=h user=u password=s3cr3t", "want postgres://USER:PASSWORD@HOST:PORT/DATABASE"},
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

// A process registers a scheme once, however often its tests run.
var registerOnce sync.Once

// A scheme that was registered is never taken for another one.
func TestARegisteredNameIsMeant(t *testing.T) {
	schemes := []string{"pgsql", "postgres+mine"}
	registerOnce.Do(func() {
		for _, scheme := range schemes {
			driver.Register(scheme, func(context.Context, *url.URL) (driver.Backend, error) { return nil, driver.ErrClosed })
		}
	})
	for _, scheme := range schemes {
		_, err := driver.Open(t.Context(), scheme+"://h/app")
		expect.Be(t, err, driver.ErrClosed, scheme)
	}
}
