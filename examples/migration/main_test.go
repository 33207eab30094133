package main

import (
	"context"
	"sync"
	"testing"

	"github.com/distlock/distlock/examples/internal/story"
	"github.com/distlock/distlock/examples/internal/storytest"
)

// A late host would see that the migration is done, and nothing would go wrong. So no host migrates
// before all have looked.
func TestWithoutALockItRunsMoreThanOnce(t *testing.T) {
	var looked sync.WaitGroup
	looked.Add(hosts)
	unlucky := func(ctx context.Context, h *story.Host, db *targetDatabase) error {
		old := db.currentVersion() < target
		looked.Done()
		looked.Wait()
		if old {
			db.migrate()
		}
		return nil
	}
	if price, err := deploy(t.Context(), storytest.New(t), unlucky); err != nil || price <= cents {
		t.Errorf("a cup costs %d, %v; it should have gone wrong", price, err)
	}
}

func TestUnderALockItRunsOnce(t *testing.T) {
	if price, err := deploy(t.Context(), storytest.New(t), startLocked); err != nil || price != cents {
		t.Errorf("a cup costs %d cents, %v", price, err)
	}
}
