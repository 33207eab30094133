package mysqllock

import (
	"strings"
	"testing"

	"github.com/distlock/distlock/internal/testkit/rights"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// The page's grants are enough for each strategy, and none is too much.
func TestRights(t *testing.T) {
	t.Parallel()
	srv := testserver.SharedMariaDB(t)
	for _, strategy := range Strategies() {
		admin := srv.Database(t)
		query := "?strategy=" + string(strategy)
		connect(t, admin+query+"&create=true")
		rights.Try(t, rights.Grants(t, "mysql.md", string(strategy)), func(t *testing.T, grants []string) string {
			var own []string
			for _, g := range grants {
				own = append(own, strings.TrimSuffix(strings.Replace(g, " ON app.", " ON "+databaseOf(t, admin)+".", 1), " TO app"))
			}
			return srv.User(t, admin, "secret", own...) + query
		})
	}
}
