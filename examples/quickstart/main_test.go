package main

import (
	"path/filepath"
	"testing"
)

func TestRun(t *testing.T) {
	if err := run(t.Context(), "sqlite:"+filepath.Join(t.TempDir(), "locks.db")); err != nil {
		t.Error(err)
	}
}
