package zklock_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/backend/zklock"
	"github.com/distlock/distlock/internal/zk"
)

// ZooKeeper's sequence numbers have 31 bits. Then the last one is repeated, and concurrent creates
// get negative numbers: the order of the nodes is lost, and Curator's clients would hold side by
// side. A lock is refused before that, while waiters still have numbers left.
func TestSequenceNumbersRunOut(t *testing.T) {
	t.Parallel()
	const last = 1<<31 - 1<<20 - 1
	srv := serverCountedTo(t, "/full", last)
	b, err := zklock.Open(t.Context(), srv.URL()+"?timeout=2m")
	if err != nil {
		t.Fatal(err)
	}
	c, err := distlock.New(b, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	lease, err := c.Mutex("full").Lock(t.Context())
	if err != nil {
		t.Fatalf("the last number: %v", err)
	}
	if err := lease.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
	for range 2 {
		if _, err := c.Mutex("full").Lock(t.Context()); !errors.Is(err, distlock.ErrInvalid) || !strings.Contains(err.Error(), `sequence numbers are used up at "/full"`) {
			t.Errorf("beyond: %v", err)
		}
	}
	if lease, err = c.Mutex("other").Lock(t.Context()); err != nil {
		t.Errorf("another lock: %v", err)
	}
	lease.Unlock(t.Context())
	admin, err := zk.Dial(t.Context(), zk.Config{Servers: []string{srv.Addr()}})
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close(context.Background())
	if left, _, err := admin.Children(t.Context(), "/full"); err != nil || len(left) > 0 {
		t.Errorf("left: %q, %v", left, err)
	}
}
