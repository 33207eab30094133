package mysqllock

import (
	"net/url"
	"testing"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/faultproxy"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// An attempt that meets refused connections fails with ErrUnsent.
func TestRefusedConnectionsSendNothing(t *testing.T) {
	for _, s := range Strategies() {
		t.Run(string(s), func(t *testing.T) {
			u, err := url.Parse(testserver.SharedMariaDB(t).Database(t) + "?create=true&strategy=" + string(s))
			if err != nil {
				t.Fatal(err)
			}
			p := faultproxy.New(t, u.Host)
			u.Host = p.Addr()
			b := connect(t, u.String())
			take(t, b, request("x", long))
			p.Refuse()
			faultproxy.AwaitUnsent(t, b, func() driver.Request { return request("y", long) })
		})
	}
}
