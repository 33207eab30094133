package drivertest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/distlock/distlock/driver"
)

// cleanupTime bounds what a check does after its end to leave nothing behind.
const cleanupTime = 5 * time.Second

// openTime bounds the first connection, if Harness.Timeout does not.
const openTime = 30 * time.Second

// need is what a backend has to claim for a promise to be about it.
type need struct {
	modes     driver.ModeSet
	fence     bool
	floor     bool
	downgrade bool
	line      bool
	ownTTL    bool // each hold ends by its own TTL, not with a session
	session   bool
	fixed     bool // a session backend's fixed holds end by their TTL
	revocable bool
	cut       bool // Harness.Cut
	refuses   bool // Harness.Refuses
}

func (n need) met(c driver.Caps, h *Harness) bool {
	return c.Modes&n.modes == n.modes &&
		(c.Fence || !n.fence) && (c.Floor || !n.floor) && (c.Downgrade || !n.downgrade) &&
		(!n.line || n.lined(c)) && (!c.Session || !n.ownTTL) && (c.Session || !n.session) &&
		(c.Fixed || !n.fixed) && (c.Revocable != 0 || !n.revocable) &&
		(h.Cut != nil || !n.cut) && (h.Refuses != nil || !n.refuses)
}

// lined: all the modes that a promise about the line is about have one.
func (n need) lined(c driver.Caps) bool {
	for m := driver.Exclusive; m <= driver.Counted; m++ {
		if n.modes.Has(m) && c.QueueingOf(m) == driver.QueueNever {
			return false
		}
	}
	return c.Queueing != driver.QueueNever
}

// scene is one run of one promise: two connections at a time to one store, names that nobody
// else uses, and the first thing that went wrong. After that all its helpers do
// nothing, so that a check reads as a straight line.
type scene struct {
	config
	ctx    context.Context
	doing  *activity
	mode   driver.Mode // of the requests it makes
	prefix string      // of the names it uses
	a, b   *conn

	mu     sync.Mutex
	broken error
	conns  []*conn
	left   map[string]driver.Hold // by owner: what may have to be released
}

func newScene(ctx context.Context, cfg config, doing *activity, mode driver.Mode) *scene {
	s := &scene{
		config: cfg, ctx: ctx, doing: doing, mode: mode,
		prefix: "drivertest " + driver.NewOwner()[:13] + " ",
		left:   map[string]driver.Hold{},
	}
	s.a, s.b = s.open("A"), s.open("B")
	return s
}

// open makes another connection. It is never nil; after a failure it is of no use, as
// the scene is over.
func (s *scene) open(label string) *conn {
	defer s.doing.begin("Open")()
	b, err := s.Open(s.ctx)
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
func (s *scene) broke(format string, args ...any) {
	b := &brokenError{text: fmt.Sprintf(format, args...)}
	for _, arg := range args {
		if err, ok := arg.(error); ok {
			b.causes = append(b.causes, err)
		}
	}
	s.fail(b)
}

// brokenError says which promise was broken, and wraps the answers that it quotes.
type brokenError struct {
	text   string
	causes []error
}

func (e *brokenError) Error() string   { return e.text }
func (e *brokenError) Unwrap() []error { return e.causes }

// want breaks the promise unless ok.
func (s *scene) want(ok bool, format string, args ...any) {
	if !ok {
		s.broke(format, args...)
	}
}

// about adds to the first error which name it was about.
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

// queued is r with a place in line if it is refused.
func queued(r driver.Request) driver.Request {
	r.Queue = true
	return r
}

// stranger is r's hold as somebody would name it who does not hold.
func stranger(r driver.Request) driver.Hold {
	h := r.Hold
	h.Owner = driver.NewOwner()
	return h
}

// sleep waits for d or the end of the check.
func (s *scene) sleep(d time.Duration) {
	select {
	case <-time.After(d):
	case <-s.ctx.Done():
	}
}

// pause is how long to wait between two attempts.
func (s *scene) pause() time.Duration { return max(2*time.Millisecond, min(s.caps.Poll, s.TTL/20)) }

// atOnce is how many of n locks one connection may hold at once.
func (s *scene) atOnce(n int) int {
	if s.Holds > 0 {
		return min(n, s.Holds)
	}
	return n
}

// together runs f for 0 to n-1 at the same time.
func together(n int, f func(i int)) {
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { f(i) })
	}
	wg.Wait()
}

// remember notes that h may have to be released when the scene ends.
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

// leave releases what may be left and closes the connections.
func (s *scene) leave() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), cleanupTime)
	defer cancel()
	defer s.doing.begin("cleaning up")()
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

// activity knows which calls are under way, to name the one that hangs.
type activity struct {
	mu    sync.Mutex
	calls map[*string]struct{}
}

func (a *activity) begin(call string) (end func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.calls == nil {
		a.calls = map[*string]struct{}{}
	}
	a.calls[&call] = struct{}{}
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.calls, &call)
	}
}

func (a *activity) String() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var calls []string
	for c := range maps.Keys(a.calls) {
		calls = append(calls, *c)
	}
	slices.Sort(calls)
	return strings.Join(slices.Compact(calls), ", ")
}

// answer describes the result of a call, and wraps its error.
func answer(err error) error {
	if err == nil {
		return &brokenError{text: "success"}
	}
	kind := "an unknown outcome"
	for _, k := range []error{driver.ErrHeld, driver.ErrLost, driver.ErrInvalid, driver.ErrUnsupported, driver.ErrClosed} {
		if errors.Is(err, k) {
			kind = nameOf(k)
		}
	}
	return fmt.Errorf("%s (%w)", kind, err)
}

func nameOf(kind error) string {
	switch {
	case kind == nil:
		return "success"
	case errors.Is(kind, driver.ErrHeld):
		return "ErrHeld"
	case errors.Is(kind, driver.ErrLost):
		return "ErrLost"
	case errors.Is(kind, driver.ErrInvalid):
		return "ErrInvalid"
	case errors.Is(kind, driver.ErrUnsupported):
		return "ErrUnsupported"
	}
	return "ErrClosed"
}
