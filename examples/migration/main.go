// Migration is three hosts that start a new version of a program at the same time. Each brings the
// database up to date before it serves. This time prices in euros become prices in cents, which must
// happen once: done twice, a cup costs 90 000 cents.
//
// Without a lock all of them see the old version, and all of them migrate. Under a lock the first one
// migrates; the others wait, see that it is done, and skip it.
package main

import (
	"context"
	"sync"
	"time"

	"github.com/distlock/distlock/examples/internal/story"
)

const (
	hosts  = 3
	euros  = 9
	cents  = 900
	target = 2 // the version that the program needs
)

func main() {
	story.Main(func(ctx context.Context, s *story.Story) error {
		s.Title("Three hosts start, and migrate")
		if _, err := deploy(ctx, s, start); err != nil {
			return err
		}
		s.Title("Three hosts start, and migrate under a lock")
		_, err := deploy(ctx, s, startLocked)
		return err
	})
}

// start checks the version and migrates, which is correct for one host at a time.
func start(_ context.Context, h *story.Host, db *targetDatabase) error {
	if db.currentVersion() >= target {
		h.Say("sees that it is done")
		return nil
	}
	h.Say("migrates")
	db.migrate()
	return nil
}

// startLocked calls start on one host at a time. The lock is renewed for as long as the migration
// takes.
func startLocked(ctx context.Context, h *story.Host, db *targetDatabase) error {
	return h.Mutex("migrate:shop").Do(ctx, func(ctx context.Context) error {
		return start(ctx, h, db)
	})
}

// deploy starts all hosts, and returns the price of a cup afterwards.
func deploy(ctx context.Context, s *story.Story, start func(context.Context, *story.Host, *targetDatabase) error) (price int, err error) {
	all, err := s.Hosts(ctx, hosts)
	if err != nil {
		return 0, err
	}
	db := &targetDatabase{version: 1, price: euros}
	err = story.Together(all, 1, func(h *story.Host) error { return start(ctx, h, db) })
	s.Say("the shop", "asks for %d cents", db.price)
	return db.price, err
}

// targetDatabase stands for a real one: currentVersion and each step of migrate are statements.
type targetDatabase struct {
	mu      sync.Mutex
	version int
	price   int
}

func (d *targetDatabase) currentVersion() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.version
}

func (d *targetDatabase) migrate() {
	time.Sleep(100 * time.Millisecond) // the other tables
	d.mu.Lock()
	defer d.mu.Unlock()
	d.price *= cents / euros
	d.version = target
}
