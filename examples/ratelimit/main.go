// Ratelimit is four hosts that call an API which allows three calls at once, over the
// whole fleet, and blocks who sends more.
//
// A limit in each host doesn't know of the others. A semaphore has three permits for all
// of them; who gets one calls, and gives it back. The permit of a host that dies comes
// back by itself, when its TTL is over.
package main

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/distlock/distlock/examples/internal/story"
)

const (
	limit   = 3
	hosts   = 4
	workers = 4 // of each host
)

func main() {
	story.Main(func(ctx context.Context, s *story.Story) error {
		s.Title("Sixteen workers on four hosts call an API that allows three calls at once")
		if _, err := tell(ctx, s, call); err != nil {
			return err
		}
		s.Title("The same, with permits")
		_, err := tell(ctx, s, callWithPermit)
		return err
	})
}

func call(_ context.Context, h *story.Host, a *api) error {
	at := a.call()
	h.Say("calls: %s", bar(at))
	return nil
}

// callWithPermit waits for a permit of the fleet's.
func callWithPermit(ctx context.Context, h *story.Host, a *api) error {
	return h.Semaphore("api", limit).Do(ctx, func(ctx context.Context) error {
		return call(ctx, h, a)
	})
}

// tell lets all workers call, and returns how many calls were under way at once at most.
func tell(ctx context.Context, s *story.Story, call func(context.Context, *story.Host, *api) error) (most int, err error) {
	fleet, err := s.Hosts(ctx, hosts)
	if err != nil {
		return 0, err
	}
	var staff []*story.Host // each worker's host
	for _, h := range fleet {
		for range workers {
			staff = append(staff, h)
		}
	}
	a := &api{}
	err = story.Together(staff, func(h *story.Host) error { return call(ctx, h, a) })
	s.Say("the API", "served %d calls, %d at once at most, and allows %d", a.served, a.most, limit)
	return a.most, err
}

// api stands for somebody else's.
type api struct {
	mu                sync.Mutex
	now, most, served int
}

// call returns how many calls were under way with it.
func (a *api) call() int {
	a.mu.Lock()
	a.now++
	a.served++
	now := a.now
	a.most = max(a.most, now)
	a.mu.Unlock()

	time.Sleep(50 * time.Millisecond)

	a.mu.Lock()
	defer a.mu.Unlock()
	a.now--
	return now
}

// bar shows how many calls were under way, and which were too many.
func bar(n int) string {
	return strings.Repeat("■", min(n, limit)) + strings.Repeat("✗", max(n-limit, 0))
}
