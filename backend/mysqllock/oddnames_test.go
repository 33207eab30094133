package mysqllock

import (
	"testing"

	"github.com/distlock/distlock/internal/testkit/oddnames"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

func TestOddNames(t *testing.T) {
	t.Parallel()
	admin := testserver.SharedMariaDB(t).Database(t)
	for _, strategy := range Strategies() {
		oddnames.Try(t, connect(t, admin+"?create=true&strategy="+string(strategy)), nil)
	}
}
