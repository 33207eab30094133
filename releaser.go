package distlock

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/distlock/distlock/driver"
)

// Bounds of the releases in the background.
const (
	maxBacklog = 1 << 16 // releases that wait for an answer
	firstTries = 16      // first tries at once
	retries    = 8       // further tries at once
)

// releaser releases in the background what an Owner may hold and nobody uses: again and again
// until the backend answers, or the TTL has passed. Where a hold may live as long as a session
// it goes on until the client is closed.
//
// However long an outage lasts, it has a few goroutines and a bounded backlog. The first try
// of each release follows at once. Those who try again pause for as long as there is no answer,
// and take the release that was tried least, so that a part of the backend that is silent
// hardly delays the others.
type releaser struct {
	c    *Client
	ctx  context.Context // of every call
	end  context.CancelFunc
	left atomic.Int64 // releases that are not done

	mu       sync.Mutex
	queue    releaseQueue
	inFlight map[<-chan struct{}][]driver.Hold // to be released after a call that is under way
	added    uint64
	trying   int // goroutines that make first tries
	retrying int // goroutines that make further ones
	stopped  bool
}

// release is one of the releases in the background.
type release struct {
	hold  driver.Hold
	end   instant // of the time that the hold may live without a session
	tries int
	turn  uint64 // among those that were tried as often
}

func newReleaser(c *Client) *releaser {
	r := &releaser{c: c, inFlight: map[<-chan struct{}][]driver.Hold{}}
	r.ctx, r.end = context.WithCancel(context.Background())
	return r
}

// abandon releases h in the background, once a call for its Owner that is in flight is over.
func (c *Client) abandon(h driver.Hold, inFlight <-chan struct{}) {
	c.tasks.begin()
	r := c.releaser
	r.left.Add(1)
	r.mu.Lock()
	defer r.mu.Unlock()
	if inFlight == nil {
		r.add(h)
		return
	}
	others := r.inFlight[inFlight]
	r.inFlight[inFlight] = append(others, h)
	if len(others) == 0 {
		go r.addAfter(inFlight)
	}
}

func (r *releaser) addAfter(inFlight <-chan struct{}) {
	<-inFlight
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, h := range r.inFlight[inFlight] {
		r.add(h)
	}
	delete(r.inFlight, inFlight)
}

// add queues a new release. What is too much for the backlog ends with its TTL; where it does
// not, room refuses more. mu is held.
func (r *releaser) add(h driver.Hold) {
	if len(r.queue) >= maxBacklog && !r.c.caps.Session {
		r.queue.Pop()
		r.done()
	}
	r.put(&release{hold: h, end: r.c.now() + h.TTL + defaultCallTimeout(h.TTL)})
}

// put queues a release and sees to it that somebody works. mu is held.
func (r *releaser) put(x *release) {
	if r.stopped {
		r.done()
		return
	}
	r.added++
	x.turn = r.added
	heap.Push(&r.queue, x)
	switch {
	case x.tries == 0 && r.trying < firstTries:
		r.trying++
		go r.try()
	case x.tries > 0 && r.retrying < retries:
		r.retrying++
		go r.retry()
	}
}

func (r *releaser) done() {
	r.left.Add(-1)
	r.c.tasks.end()
}

// room says why nothing may be asked for now: it could not be released, and would not end by
// itself.
func (r *releaser) room() error {
	if n := r.left.Load(); n >= maxBacklog && r.c.caps.Session {
		return driver.Unsent(fmt.Errorf("%d releases have no answer yet", n))
	}
	return nil
}

// try makes first tries. They are short: what is silent is for those who try again.
func (r *releaser) try() {
	for x := r.take(&r.trying, 0); x != nil; x = r.take(&r.trying, 0) {
		r.ask(x, defaultCallTimeout(x.hold.TTL)/4)
	}
}

// retry makes further tries.
func (r *releaser) retry() {
	for failures := 1; ; failures++ {
		if failures > 0 {
			r.pause(failures - 1)
		}
		x := r.take(&r.retrying, math.MaxInt)
		if x == nil {
			return
		}
		if r.ask(x, defaultCallTimeout(x.hold.TTL)) {
			failures = -1
		}
	}
}

// pause lets all who try again make about two calls a second, together.
func (r *releaser) pause(failures int) {
	r.mu.Lock()
	limit := maxWait * time.Duration(r.retrying+1) / 2
	r.mu.Unlock()
	if !sleep(r.c.life, jitter(backoff(failures, firstPause, limit))) {
		sleep(r.ctx, firstPause) // Close is waiting
	}
}

// take is the next release for one of the workers that are counted by n. It is nil, and the
// worker done, if there is none or it was tried more often than most.
func (r *releaser) take(n *int, most int) *release {
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.queue) > 0 && r.queue[0].tries <= most {
		x := heap.Pop(&r.queue).(*release)
		if r.c.now() < x.end || r.c.caps.Session && !r.c.isClosed() {
			return x
		}
		r.done()
	}
	*n--
	return nil
}

// ask makes one call, and reports whether there was an answer. Without one x is queued again.
func (r *releaser) ask(x *release, timeout time.Duration) bool {
	ctx, cancel := context.WithTimeout(r.ctx, timeout)
	defer cancel()
	err := r.c.backend.Release(ctx, x.hold)
	if err == nil || errors.Is(err, ErrLost) || driver.Final(err) {
		r.done()
		return true
	}
	x.tries++
	r.mu.Lock()
	defer r.mu.Unlock()
	r.put(x)
	return false
}

// stop ends all and returns how many releases were not done.
func (r *releaser) stop() int {
	r.end()
	r.mu.Lock()
	defer r.mu.Unlock()
	left := r.left.Load()
	for range r.queue {
		r.done()
	}
	r.queue, r.stopped = nil, true
	return int(left)
}

// releaseQueue has those first that were tried least.
type releaseQueue []*release

func (q releaseQueue) Len() int      { return len(q) }
func (q releaseQueue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *releaseQueue) Push(x any)   { *q = append(*q, x.(*release)) }

func (q releaseQueue) Less(i, j int) bool {
	if q[i].tries != q[j].tries {
		return q[i].tries < q[j].tries
	}
	return q[i].turn < q[j].turn
}

func (q *releaseQueue) Pop() any {
	last := len(*q) - 1
	x := (*q)[last]
	(*q)[last] = nil
	*q = (*q)[:last]
	return x
}
