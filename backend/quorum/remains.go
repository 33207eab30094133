package quorum

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/distlock/distlock/driver"
)

const (
	firstPause = 10 * time.Millisecond // between two tries at a silent member, doubling
	lastPause  = time.Second

	// maxRemains bounds what is remembered for one member. What is beyond ends with its
	// TTL.
	maxRemains = 10_000

	// sweepers is how many calls at once release what remains when a member is back.
	sweepers = 16
)

// remains is what one member may still hold for Owners that are done: a release, or the
// end of an attempt that failed, had no answer there. While the member is silent one of
// them is tried now and then; when it answers, all are released.
type remains struct {
	mu      sync.Mutex
	m       map[string]remain // by Owner
	running bool
}

type remain struct {
	driver.Hold
	end time.Time // by then it has ended by itself
}

// leave hands a hold over to the background. The caller has begun a task.
func (b *Backend) leave(m *member, h driver.Hold, end time.Time) {
	r := &m.remains
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.m == nil {
		r.m = map[string]remain{}
	}
	if len(r.m) >= maxRemains {
		for owner := range r.m {
			delete(r.m, owner)
			break
		}
	}
	r.m[h.Owner] = remain{h, end}
	if !r.running {
		r.running = true
		b.tasks.Add(1)
		go func() {
			defer b.tasks.Done()
			b.sweep(m)
		}()
	}
}

// forget says that owner is done no more, or that nothing of it remains.
func (r *remains) forget(owner string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.m, owner)
}

func (r *remains) has(owner string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, ok := r.m[owner]
	return ok
}

// some are up to n of those that have not ended. Without any the sweep is over.
func (r *remains) some(n int) []driver.Hold {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	var some []driver.Hold
	for owner, h := range r.m {
		if now.After(h.end) {
			delete(r.m, owner)
			continue
		}
		if some = append(some, h.Hold); len(some) == n {
			return some
		}
	}
	r.running = len(some) > 0
	return some
}

// sweep works until nothing remains, or the backend closes and one last try failed.
func (b *Backend) sweep(m *member) {
	pause := firstPause
	for n := 1; ; {
		last := b.rest(pause)
		holds := m.remains.some(n)
		switch {
		case len(holds) == 0:
			return
		case b.tryAll(m, holds):
			n, pause = sweepers, 0
		case last:
			return
		default:
			n, pause = 1, min(max(2*pause, firstPause), lastPause)
		}
	}
}

// tryAll releases holds at m, and reports whether m answered any of them.
func (b *Backend) tryAll(m *member, holds []driver.Hold) (answered bool) {
	var wg sync.WaitGroup
	var some atomic.Bool
	for _, h := range holds {
		wg.Add(1)
		b.send(m, mends, []string{h.Owner}, func(bool) {
			defer wg.Done()
			if !m.remains.has(h.Owner) {
				return // it is asked for anew
			}
			if !isUnknown(b.releaseAt(context.Background(), m, h)) {
				m.remains.forget(h.Owner)
				some.Store(true)
			}
		})
	}
	wg.Wait()
	return some.Load()
}

// rest pauses, and reports whether the backend closes.
func (b *Backend) rest(d time.Duration) (closing bool) {
	if d == 0 {
		return false
	}
	t := time.NewTimer(d/2 + rand.N(d))
	defer t.Stop()
	select {
	case <-t.C:
		return false
	case <-b.closing:
		return true
	}
}
