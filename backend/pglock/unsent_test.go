package pglock

import (
	"strings"
	"testing"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/faultproxy"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// An attempt that meets refused connections fails with ErrUnsent.
func TestRefusedConnectionsSendNothing(t *testing.T) {
	pg := testserver.SharedPostgres(t)
	for what, params := range map[string][]string{
		"row":         nil,
		"session":     {"strategy", "advisory"},
		"transaction": {"strategy", "advisory", "level", "transaction"},
	} {
		t.Run(what, func(t *testing.T) {
			p := faultproxy.New(t, pg.Addr())
			b := open(t, strings.Replace(with(t, fresh(t), params...), pg.Addr(), p.Addr(), 1))
			take(t, b, request("x"))
			p.Refuse()
			faultproxy.AwaitUnsent(t, b, func() driver.Request { return request("y") })
		})
	}
}
