package sqlitelock

import (
	"path/filepath"
	"testing"

	"github.com/distlock/distlock/internal/testkit/oddnames"
)

func TestOddNames(t *testing.T) {
	t.Parallel()
	oddnames.Try(t, connect(t, filepath.Join(t.TempDir(), "locks.db")), nil)
}
