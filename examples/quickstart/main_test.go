package main

import (
	"path/filepath"
	"testing"

	"github.com/distlock/distlock/examples/internal/exampletest"
)

func TestMain(m *testing.M) { exampletest.Main(m, main) }

func TestRun(t *testing.T) {
	if err := run(t.Context(), "sqlite:"+filepath.Join(t.TempDir(), "locks.db")); err != nil {
		t.Error(err)
	}
}

func TestItFailsWithoutAServer(t *testing.T) {
	exampletest.Fails(t, "connection refused", "DISTLOCK_URL=redis://127.0.0.1:1")
}
