package pglock

import (
	"testing"

	"github.com/distlock/distlock/internal/testkit/oddnames"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

func TestOddNames(t *testing.T) {
	t.Parallel()
	db := testserver.SharedPostgres(t).Database(t)
	for _, strategy := range []string{"row", "advisory"} {
		oddnames.Try(t, open(t, with(t, db, "create", "true", "strategy", strategy)), nil)
	}
}
