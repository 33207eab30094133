package pglock

import (
	"context"
	"strings"
	"testing"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/faultfuzz"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

func TestLateCalls(t *testing.T) {
	for query, c := range map[string]faultfuzz.Case{
		"strategy=row":                        {Rate: 0.03},
		"strategy=advisory&level=session":     {Rate: 0.02, Connected: true},
		"strategy=advisory&level=transaction": {Rate: 0.02, Connected: true},
	} {
		t.Run(query, func(t *testing.T) {
			t.Parallel()
			pg := testserver.SharedPostgres(t)
			rawURL := hastyAt(t, pg)
			for _, pair := range strings.Split("create=true&"+query, "&") {
				key, value, _ := strings.Cut(pair, "=")
				rawURL = with(t, rawURL, key, value)
			}
			c.Servers = []string{pg.Addr()}
			c.Open = func(ctx context.Context, addrs []string) (driver.Backend, error) {
				return Open(ctx, strings.Replace(rawURL, pg.Addr(), addrs[0], 1))
			}
			faultfuzz.Run(t, c)
		})
	}
}
