package served

import (
	"testing"

	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/oddnames"
)

// Names and metadata pass through the server and its client as they are.
func TestOddNames(t *testing.T) {
	t.Parallel()
	store := memlock.NewStore()
	oddnames.Try(t, open(t, start(t, func() driver.Backend { return store.Connect() }).url()), nil)
}
