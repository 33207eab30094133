package mysqllock

import (
	"testing"

	"github.com/distlock/distlock/internal/testserver"
)

func TestConformanceOfSession(t *testing.T) {
	t.Parallel()
	conform(t, Session)
}

// A hold of ForUpdate has a connection of its own, and some checks have hundreds at once.
func TestConformanceOfForUpdate(t *testing.T) {
	t.Parallel()
	srv := testserver.MariaDB(t, testserver.MariaDBOptions{Args: []string{"--max-connections=2000"}})
	conformOn(t, srv, ForUpdate)
}
