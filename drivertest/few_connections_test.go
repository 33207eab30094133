package drivertest

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/distlock/distlock/driver"
)

// few makes a harness for a store with few connections.
func few(h *Harness) { h.Serial, h.Holds = true, 2 }

// TestLongMutantsOnFewConnections shows that the suite finds as much on a store with few
// connections, but for a defect of big batches.
func TestLongMutantsOnFewConnections(t *testing.T) {
	for _, m := range mutants() {
		if m.check == "renew/big-batch" {
			continue
		}
		if err := tryWith(t, m.alter, checkNamed(t, m.check), few); err == nil || errors.Is(err, ErrNotClaimed) || errors.Is(err, errSlow) {
			t.Errorf("%s: %s answered %v", m.defect, m.check, err)
		}
	}
}

// TestFewConnections counts the connections that are open at once, and the holds of each.
func TestFewConnections(t *testing.T) {
	for _, c := range Checks() {
		var mu sync.Mutex
		open, most, mostHeld := 0, 0, 0
		count := func(_ *lab, p *patched) {
			mu.Lock()
			defer mu.Unlock()
			open++
			most = max(most, open)
			held, end := map[string]bool{}, p.close
			acquire, release := p.acquire, p.release
			p.acquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
				g, err := acquire(ctx, r)
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					held[r.Owner] = true
					mostHeld = max(mostHeld, len(held))
				}
				return g, err
			}
			p.release = func(ctx context.Context, h driver.Hold) error {
				mu.Lock()
				delete(held, h.Owner)
				mu.Unlock()
				return release(ctx, h)
			}
			var once sync.Once
			p.close = func() error {
				once.Do(func() {
					mu.Lock()
					open--
					mu.Unlock()
				})
				return end()
			}
		}
		if err := tryWith(t, count, c, few); err != nil && !errors.Is(err, ErrNotClaimed) {
			t.Errorf("%s: %v", c.Name, err)
		}
		if most > 2 {
			t.Errorf("%s had %d connections open at once, want 2 at most", c.Name, most)
		}
		if many := c.Name == "renew/big-batch" || strings.HasPrefix(c.Name, "names/"); many && mostHeld > 2 {
			t.Errorf("%s held %d locks at once on a connection, want 2 at most", c.Name, mostHeld)
		}
	}
}

// TestBrokenWrapsTheAnswer shows that a broken promise can be told from a server that
// refuses connections.
func TestBrokenWrapsTheAnswer(t *testing.T) {
	full := errors.New("too many connections")
	refuse := func(_ *lab, p *patched) {
		p.acquire = func(context.Context, driver.Request) (driver.Grant, error) { return driver.Grant{}, full }
	}
	for _, name := range []string{"exclusion/two-connections", "exclusion/race", "names/case"} {
		if err := try(t, refuse, checkNamed(t, name)); !errors.Is(err, full) {
			t.Errorf("%s: got %v, want the answer of Acquire", name, err)
		}
	}
}
