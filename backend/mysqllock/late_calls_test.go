package mysqllock

import (
	"context"
	"encoding/hex"
	"net/url"
	"testing"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/faultfuzz"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

func TestLateCalls(t *testing.T) {
	late := hex.EncodeToString([]byte("late:")) // as statements have it
	for strategy, c := range map[Strategy]faultfuzz.Case{
		Row: {Rate: 0.03}, Version: {Text: late}, UniqueIndex: {Text: late},
		ForUpdate: {Rate: 0.02, Connected: true}, Session: {Rate: 0.02, Connected: true},
	} {
		t.Run(string(strategy), func(t *testing.T) {
			t.Parallel()
			u, err := url.Parse(testserver.SharedMariaDB(t).Database(t) + "?create=true&strategy=" + string(strategy))
			if err != nil {
				t.Fatal(err)
			}
			c.Servers = []string{u.Host}
			c.Open = func(ctx context.Context, addrs []string) (driver.Backend, error) {
				proxied := *u
				proxied.Host = addrs[0]
				return Open(ctx, proxied.String())
			}
			faultfuzz.Run(t, c)
		})
	}
}
