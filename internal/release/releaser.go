// Package release releases holds of a client that no user has, in the background.
package release

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
	"github.com/distlock/distlock/internal/renew"
	"github.com/distlock/distlock/internal/wait"
)

// Bounds.
const (
	firstPause  = 20 * time.Millisecond // between retries without an answer, doubling
	maxBacklog  = 1 << 15               // releases without an answer
	maxTrying   = 16                    // goroutines that make first tries
	maxRetrying = 8                     // goroutines that make further tries
)

// Releaser releases, in the background, holds that an Owner may have without a user. It repeats each
// release until the backend answers or the TTL has passed. Where a hold has no end of its own (a session's, or one that
// ends only for those who watch it), it repeats the release until the client is closed.
//
// Its goroutines and its backlog are bounded, however long an outage lasts. The first try of a
// release is made at once. Retries pause while the backend gives no answer. They take the release
// with the fewest tries first, so that a silent part of the backend does not delay the releases
// at the other parts for long.
type Releaser struct {
	Config
	ctx  context.Context // of every call
	end  context.CancelFunc
	left atomic.Int64 // releases without an answer

	mu       sync.Mutex
	queue    releaseQueue
	inFlight map[<-chan struct{}][]driver.Hold // wait for the end of a call for their Owner
	added    uint64
	trying   int // goroutines in try
	retrying int // goroutines in retry
	stopped  bool
	told     string // the last error, until there is an answer
}

// pending is a release without an answer.
type pending struct {
	hold  driver.Hold
	end   time.Duration // by then the hold has ended by its TTL
	tries int
	order uint64 // among releases with as many tries
}

// Config configures a Releaser.
type Config struct {
	Life    context.Context // of the client; once it has ended retries hardly pause
	Now     func() time.Duration
	Release func(context.Context, driver.Hold) error // the backend's
	Session bool                                     // holds do not end by themselves

	// Unanswered is told why a release had no answer, when that is not what it was told last.
	Unanswered func(driver.Hold, error)

	Tasks interface { // counts the releases that the client's Close waits for
		Begin()
		End()
	}
}

// New returns a Releaser without releases.
func New(c Config) *Releaser {
	r := &Releaser{Config: c, inFlight: map[<-chan struct{}][]driver.Hold{}}
	r.ctx, r.end = context.WithCancel(context.Background())
	return r
}

// Add releases h in the background. If inFlight is not nil, Add first waits in the background until
// it is closed: a call for the same Owner is in flight.
func (r *Releaser) Add(h driver.Hold, inFlight <-chan struct{}) {
	r.Tasks.Begin()
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

func (r *Releaser) addAfter(inFlight <-chan struct{}) {
	<-inFlight
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, h := range r.inFlight[inFlight] {
		r.add(h)
	}
	delete(r.inFlight, inFlight)
}

// add queues a new release. If the backlog is full it drops another one, whose hold ends with its
// TTL. Where holds do not, Room keeps the backlog from growing. mu is held.
func (r *Releaser) add(h driver.Hold) {
	if len(r.queue) >= maxBacklog && !r.Session {
		r.queue.Pop()
		r.done()
	}
	r.put(&pending{hold: h, end: r.Now() + h.TTL + renew.DefaultCallTimeout(h.TTL)})
}

// put queues a release and starts a goroutine for it if there may be one more. mu is held.
func (r *Releaser) put(p *pending) {
	if r.stopped {
		r.done()
		return
	}
	r.added++
	p.order = r.added
	heap.Push(&r.queue, p)
	switch {
	case p.tries == 0 && r.trying < maxTrying:
		r.trying++
		go r.try()
	case p.tries > 0 && r.retrying < maxRetrying:
		r.retrying++
		go r.retry()
	}
}

func (r *Releaser) done() {
	r.left.Add(-1)
	r.Tasks.End()
}

// Room returns an error while the backlog is full and holds do not end by themselves: a further
// attempt might take a lock that is never released.
func (r *Releaser) Room() error {
	if n := r.left.Load(); n >= maxBacklog && r.Session {
		return driver.Unsent(fmt.Errorf("%d background releases have no answer yet, so no more locks are taken", n))
	}
	return nil
}

// try makes first tries. Their timeout is short, so that a silent part of the backend does not
// keep all goroutines busy.
func (r *Releaser) try() {
	for p := r.take(&r.trying, 0); p != nil; p = r.take(&r.trying, 0) {
		r.ask(p, renew.DefaultCallTimeout(p.hold.TTL)/4)
	}
}

// retry makes further tries, with a pause after each one without an answer.
func (r *Releaser) retry() {
	for failures := 1; ; {
		if failures > 0 {
			r.pause(failures - 1)
		}
		p := r.take(&r.retrying, math.MaxInt)
		if p == nil {
			return
		}
		failures++
		if r.ask(p, renew.DefaultCallTimeout(p.hold.TTL)) {
			failures = 0
		}
	}
}

// pause limits all retries together to about two calls per second.
func (r *Releaser) pause(failures int) {
	r.mu.Lock()
	limit := time.Second * time.Duration(r.retrying+1) / 2
	r.mu.Unlock()
	if wait.Sleep(r.Life, wait.Jitter(wait.Backoff(failures, firstPause, limit))) != nil {
		_ = wait.Sleep(r.ctx, firstPause) // Close waits for the backlog
	}
}

// take returns the next release. It returns nil if there is none with at most that many tries;
// then the calling goroutine, which n counts, has to end.
func (r *Releaser) take(n *int, most int) *pending {
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.queue) > 0 && r.queue[0].tries <= most {
		p := heap.Pop(&r.queue).(*pending)
		if r.Now() < p.end || r.Session && r.Life.Err() == nil {
			return p
		}
		r.done()
	}
	*n--
	return nil
}

// ask makes one call, and reports whether the backend answered. If not, it queues p again.
func (r *Releaser) ask(p *pending, timeout time.Duration) bool {
	ctx, cancel := context.WithTimeout(r.ctx, timeout)
	defer cancel()
	err := r.Release(ctx, p.hold)
	if err == nil || errors.Is(err, driver.ErrLost) {
		r.tell("")
		r.done()
		return true
	}
	p.tries++
	r.mu.Lock()
	r.put(p)
	r.mu.Unlock()
	if r.tell(err.Error()) {
		r.Unanswered(p.hold, err)
	}
	return false
}

// tell records the last error, and reports whether it is another one.
func (r *Releaser) tell(text string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	another := text != r.told
	r.told = text
	return another
}

// Stop ends all releases and returns how many had no answer.
func (r *Releaser) Stop() int {
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

// releaseQueue is a heap with the fewest tries first.
type releaseQueue []*pending

func (q releaseQueue) Len() int      { return len(q) }
func (q releaseQueue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *releaseQueue) Push(p any)   { *q = append(*q, p.(*pending)) }

func (q releaseQueue) Less(i, j int) bool {
	if q[i].tries != q[j].tries {
		return q[i].tries < q[j].tries
	}
	return q[i].order < q[j].order
}

func (q *releaseQueue) Pop() any {
	last := len(*q) - 1
	p := (*q)[last]
	(*q)[last] = nil
	*q = (*q)[:last]
	return p
}
