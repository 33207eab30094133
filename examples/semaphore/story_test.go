package main

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/distlock/distlock/examples/internal/story"
)

// Ratelimit is four hosts that call an API which allows three calls at once, over the whole fleet, and
// blocks clients that send more.
//
// A limit in each host doesn't know of the other hosts. A semaphore has three permits for all of them: a
// worker with a permit calls, and then releases it. The permit of a host that dies becomes free when its
// TTL has passed.

const (
	limit   = 3
	hosts   = 4
	workers = 4 // of each host
)

func call(_ context.Context, h *story.Host, a *api) error {
	at := a.call()
	h.Say("calls: %s", bar(at))
	return nil
}

// callWithPermit waits for one of the fleet's permits.
func callWithPermit(ctx context.Context, h *story.Host, a *api) error {
	return h.Semaphore("api", limit).Do(ctx, func(ctx context.Context) error {
		return call(ctx, h, a)
	})
}

// simulate lets all workers call, and returns the maximum number of concurrent calls.
func simulate(ctx context.Context, s *story.Story, call func(context.Context, *story.Host, *api) error) (most int, err error) {
	fleet, err := s.Hosts(hosts)
	if err != nil {
		return 0, err
	}
	a := &api{}
	err = story.Together(fleet, workers, func(h *story.Host) error { return call(ctx, h, a) })
	s.Say("the API", "served %d calls, %d at once at most, and allows %d", a.served, a.most, limit)
	return a.most, err
}

// api stands for another company's service.
type api struct {
	mu                sync.Mutex
	now, most, served int
}

// call returns the number of concurrent calls, including itself.
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

// bar draws the number of concurrent calls, and how many were too many.
func bar(n int) string {
	return strings.Repeat("■", min(n, limit)) + strings.Repeat("✗", max(n-limit, 0))
}
