package pglock

import (
	"testing"

	"github.com/distlock/distlock/internal/testkit/rights"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// The page's grants are enough for each strategy, and none is too much.
func TestRights(t *testing.T) {
	t.Parallel()
	pg := testserver.SharedPostgres(t)
	for _, c := range []struct{ strategy, level string }{{"row", ""}, {"advisory", "session"}} {
		db := with(t, pg.Database(t), "strategy", c.strategy)
		if c.level != "" {
			db = with(t, db, "level", c.level)
		}
		open(t, with(t, db, "create", "true"))
		rights.Try(t, rights.Grants(t, "postgres.md", c.strategy), func(t *testing.T, grants []string) string {
			return pg.User(t, db, "secret", forUser(grants)...)
		})
	}
}

// forUser cuts off what names the user of the example.
func forUser(grants []string) (cut []string) {
	for _, g := range grants {
		cut = append(cut, g[:len(g)-len(" TO app")])
	}
	return cut
}
