package drivertest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/wait"
)

// scene is one run of one promise: two connections at a time to one store, names of its
// own, and the first error. After that all helpers do nothing, so that a check is a straight line.
type scene struct {
	config
	ctx      context.Context
	activity *activity
	mode     driver.Mode // of the requests it makes
	prefix   string      // of the names it uses
	a, b     *conn

	mu      sync.Mutex
	broken  error
	conns   []*conn
	watches []armedWatch
	left    map[string]driver.Hold // by owner: what may have to be released
}

func newScene(ctx context.Context, cfg config, calls *activity, mode driver.Mode) *scene {
	s := &scene{
		config: cfg, ctx: ctx, activity: calls, mode: mode,
		prefix: "drivertest " + driver.NewOwner()[:13] + " ",
		left:   map[string]driver.Hold{},
	}
	s.a, s.b = s.open("A"), s.open("B")
	return s
}

// open makes another connection. It is never nil. After a failure the scene is over, and the
// connection is unusable.
func (s *scene) open(label string) *conn {
	defer s.activity.begin("Open")()
	b, err := s.openAtLast(s.ctx)
	if err != nil {
		s.fail(fmt.Errorf("drivertest: open: %w", err))
		return &conn{scene: s, label: label}
	}
	c := &conn{scene: s, Backend: b, label: label}
	s.mu.Lock()
	s.conns = append(s.conns, c)
	s.mu.Unlock()
	return c
}

// fail ends the scene with its first error.
func (s *scene) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.broken == nil {
		s.broken = err
	}
}

// broke ends the scene: a promise was broken.
func (s *scene) broke(format string, args ...any) { s.fail(fmt.Errorf(format, args...)) }

// want breaks the promise unless ok.
func (s *scene) want(ok bool, format string, args ...any) {
	if !ok {
		s.broke(format, args...)
	}
}

// about adds the name to the first error.
func (s *scene) about(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.broken != nil {
		s.broken = fmt.Errorf("name %.80q: %w", name, s.broken)
	}
}

func (s *scene) err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.broken
}

func (s *scene) over() bool { return s.err() != nil }

// sleep waits for d or the end of the check.
func (s *scene) sleep(d time.Duration) { _ = wait.Sleep(s.ctx, d) }

// pause returns how long to wait between two attempts.
func (s *scene) pause() time.Duration { return max(2*time.Millisecond, min(s.caps.Poll, s.TTL/20)) }

// atOnce returns how many of n locks one connection may hold at once.
func (s *scene) atOnce(n int) int {
	if s.Holds > 0 {
		return min(n, s.Holds)
	}
	return n
}

// conn returns A for even and B for odd numbers.
func (s *scene) conn(i int) *conn { return []*conn{s.a, s.b}[i%2] }

// together runs f for 0 to n-1 at the same time.
func together(n int, f func(i int)) {
	var wg wait.Group
	for i := range n {
		wg.Go(func() { f(i) })
	}
	wg.Wait()
}

// remember records that h may have to be released when the scene ends.
func (s *scene) remember(h driver.Hold) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.left[h.Owner] = h
}

func (s *scene) forget(owner string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.left, owner)
}

// cleanUp closes the watches, releases what may be left and closes the connections.
func (s *scene) cleanUp() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), cleanupTime)
	defer cancel()
	defer s.activity.begin("cleaning up")()
	for _, w := range s.watches {
		w.end()
	}
	s.release(ctx)
	for _, c := range s.conns {
		if !c.closed {
			c.Backend.Close()
		}
	}
}

func (s *scene) release(ctx context.Context) {
	var via driver.Backend
	for _, c := range s.conns {
		if !c.closed {
			via = c.Backend
		}
	}
	if via == nil && len(s.left) > 0 {
		b, err := s.Open(ctx)
		if err != nil {
			return
		}
		defer b.Close()
		via = b
	}
	for _, h := range s.left {
		via.Release(ctx, h)
	}
}

// expired makes a hold that has ended. Unless it was a session's, or ends only for those who watch it, no call has named it
// since: its twin, taken later for as long, was seen to end. The returned connection can still call for its owner.
func (s *scene) expired() (driver.Request, *conn) {
	r, twin := s.brief(s.request()), s.brief(s.requestFor("twin"))
	since := time.Now()
	s.a.mustAcquire(r, "a free lock is granted")
	s.a.within(since, s.TTL).mustAcquire(twin, "a free lock is granted")
	s.a.fallSilent()
	s.b.eventually(s.rival(twin), s.TTL, "a hold without renewal ends with its TTL")
	if s.caps.Observed {
		s.replaced(r, "a hold without renewal ends with its TTL for those who watch it")
	}
	if !s.caps.Session {
		return r, s.a
	}
	// A session may be several connections, which end one by one.
	s.replaced(r, "the end of a session ends its holds")
	return r, s.b
}

// replaced waits for the end of r's hold on B, and leaves the lock free.
func (s *scene) replaced(r driver.Request, rule string) {
	next := s.rival(r)
	s.b.eventually(next, s.TTL, rule)
	s.b.free(next.Hold, nil, "the holder releases")
}

// lengthened takes r's lock for the short TTL and renews it for the long one. Where a session
// can't give a hold a longer life, it is taken for the long one, by another owner.
func (s *scene) lengthened(r driver.Request) driver.Request {
	c := s.a.within(time.Now(), s.TTL)
	c.mustAcquire(s.brief(r), "a free lock is granted")
	for _, err := range c.renewAll([]driver.Hold{r.Hold}, "the holder renews for longer") {
		if s.caps.Session && errors.Is(err, driver.ErrUnsupported) {
			c.free(r.Hold, nil, "the holder releases")
			r.Owner = driver.NewOwner()
			s.a.mustAcquire(r, "a released lock is free")
			continue
		}
		c.want(err == nil, "the holder renews for longer: Renew on connection A answered %w; want success", answer(err))
	}
	return r
}

// outlives waits until a hold of the short TTL would have ended, and checks that r's has not.
func (s *scene) outlives(r driver.Request, rule string) {
	s.sleep(s.TTL * 14 / 10)
	s.b.refused(s.rival(r), rule)
	s.a.renew(r.Hold, nil, rule)
}

// renewLate renews a hold that was anchored at since, when more than half of the TTL has passed. It
// returns an instant before the renewal. If the machine was too slow, the scene is over.
func (s *scene) renewLate(r driver.Request, since time.Time) time.Time {
	s.sleep(r.TTL * 6 / 10)
	now := time.Now()
	s.a.within(since, r.TTL).renew(r.Hold, nil, "a live hold is renewed")
	return now
}

// whileRenewed runs f while A renews a hold, which must be alive at the end. Otherwise the machine
// was too slow to tell.
func (s *scene) whileRenewed(kept driver.Request, f func()) {
	renew := func() {
		for _, err := range s.a.renewAll([]driver.Hold{kept.Hold}, "the holder renews") {
			if errors.Is(err, driver.ErrLost) {
				s.fail(errSlow)
			}
		}
	}
	stop := make(chan struct{})
	var renewing wait.Group
	renewing.Go(func() {
		for {
			renew()
			select {
			case <-stop:
				return
			case <-time.After(s.TTL / 4):
			}
		}
	})
	f()
	close(stop)
	renewing.Wait()
	renew()
}

// rises wants later's fences to be above all of earlier's.
func (s *scene) rises(earlier, later driver.Grant, what string) {
	if s.caps.Fence && earlier.Fence > 0 && !s.over() {
		s.want(later.Fence > earlier.Last(), "fences strictly increase, %s: got %d after %d to %d", what, later.Fence, earlier.Fence, earlier.Last())
	}
}

func (s *scene) above(floor uint64, g driver.Grant) {
	s.want(g.Fence > floor || s.over(), "a later fence is above the floor: got %d, floor %d", g.Fence, floor)
}

// queueUp makes rivals of r wait in the queue, one on each of the connections.
func (s *scene) queueUp(r driver.Request, via ...*conn) []driver.Request {
	var waiters []driver.Request
	for _, c := range via {
		w := s.rival(r)
		c.refused(queued(w), "a lock has one holder at a time")
		waiters = append(waiters, w)
	}
	return waiters
}

// wantRevoked wants an OnRevoke to be called soon.
func (s *scene) wantRevoked(e *revocations, rule string) {
	if s.over() {
		return
	}
	select {
	case <-e.first:
	case <-s.ctx.Done():
	case <-time.After(s.Slack):
		s.broke("%s: OnRevoke was not called within %v", rule, s.Slack)
	}
}

// wantNotRevoked wants an OnRevoke not to be called.
func (s *scene) wantNotRevoked(e *revocations, rule string) {
	if s.over() {
		return
	}
	s.sleep(10 * s.pause())
	s.want(e.calls.Load() == 0, "%s: OnRevoke was called %d times", rule, e.calls.Load())
}

// request asks for the scene's lock for a new owner, for longer than the check takes.
func (s *scene) request() driver.Request { return s.requestFor("lock") }

// requestFor is request for another of the scene's names.
func (s *scene) requestFor(name string) driver.Request { return s.requestIn(s.mode, name) }

// requestIn is requestFor in another mode.
func (s *scene) requestIn(mode driver.Mode, name string) driver.Request {
	r := driver.Request{
		Hold:   driver.Hold{Name: s.prefix + name, Owner: driver.NewOwner(), Mode: mode, TTL: s.long()},
		Fences: 1,
	}
	if mode == driver.Counted {
		r.Limit = 1
	}
	return r
}

// brief is r for the TTL of holds whose end is waited for.
func (s *scene) brief(r driver.Request) driver.Request {
	r.TTL = s.TTL
	return r
}

// rival asks for the same lock for a new owner, such that the two exclude each other.
func (s *scene) rival(r driver.Request) driver.Request {
	r.Owner, r.TTL = driver.NewOwner(), s.long()
	if r.Mode == driver.Read {
		r.Mode = driver.Write
	}
	return r
}

// queued returns r, with a place in the queue if it is refused.
func queued(r driver.Request) driver.Request {
	r.Queue = true
	return r
}

// stranger returns r's hold with an Owner that does not hold.
func stranger(r driver.Request) driver.Hold {
	h := r.Hold
	h.Owner = driver.NewOwner()
	return h
}

// permit asks for one of limit permits.
func (s *scene) permit(limit int) driver.Request {
	r := s.requestIn(driver.Counted, "lock")
	r.Limit = limit
	return r
}

func (s *scene) reader() driver.Request { return s.requestIn(driver.Read, "lock") }

func (s *scene) writer() driver.Request { return s.requestIn(driver.Write, "lock") }

// asReader asks for a downgrade of w.
func asReader(w driver.Request) driver.Request {
	w.Mode = driver.Read
	return w
}

// pair asks for a lock that two may hold at once if its mode allows that.
func (s *scene) pair() driver.Request {
	r := s.request()
	if r.Mode == driver.Counted {
		r.Limit = 2
	}
	return r
}

// onRevoke is r with an OnRevoke.
func onRevoke(r driver.Request) (driver.Request, *revocations) {
	e := &revocations{first: make(chan struct{})}
	r.OnRevoke = func() {
		if e.calls.Add(1) == 1 {
			close(e.first)
		}
	}
	return r, e
}

// revocations counts the calls of an OnRevoke.
type revocations struct {
	calls atomic.Int32
	first chan struct{} // closed by the first call
}

// fixed returns r as a fixed hold, which need not be renewed.
func fixed(r driver.Request) driver.Request {
	r.Fixed = true
	return r
}
