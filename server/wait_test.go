package server

import (
	"context"
	"errors"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
)

// A waiter keeps its place in the queue, however short its TTL is.
func TestWaitWithAShortTTLKeepsItsPlace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := serverOf(t, Options{})
		answers(t, s, 200, "POST", "/v1/locks/x?ttl=1h", "", "Distlock-Owner", driver.NewOwner())
		holder := driver.Hold{Name: "x", Mode: driver.Exclusive}
		info, err := s.inspection.Inspect(t.Context(), "x")
		if err != nil || len(info.Holders) != 1 {
			t.Fatal(info, err)
		}
		holder.Owner = info.Holders[0].Owner
		ctx, cancel := context.WithCancel(t.Context())
		won := make(chan string, 2)
		for _, owner := range []string{ownerA, ownerB} {
			go func() {
				if w := bare(ctx, s, "POST", "/v1/locks/x?ttl=300ms&wait=1m", "", "Distlock-Owner", owner); w.Code == 200 {
					won <- owner
				}
			}()
			time.Sleep(500 * time.Millisecond)
		}
		must.OK(t, s.backend.Release(t.Context(), holder))
		expect.Equal(t, <-won, ownerA, "the second one in the queue is first")
		cancel()
		synctest.Wait()
	})
}

// deaf is a backend whose watches are never armed.
type deaf struct{ *memlock.Backend }

func (deaf) Watch(ctx context.Context, _ driver.Request) (driver.Watch, error) {
	<-ctx.Done()
	return driver.Watch{}, ctx.Err()
}

// A waiter polls if its watch can't be armed in the time of a call.
func TestWaitWithoutAWatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := must.Get(New(deaf{memlock.New()}, Options{}))(t)
		answers(t, s, 200, "POST", "/v1/acquire", strings.Replace(hold("x", ownerA), "30000", "1000", 1))
		began := time.Now()
		w := bare(t.Context(), s, "POST", "/v1/acquire", waiting("x", ownerB, 60_000))
		if waited := time.Since(began); w.Code != 200 || waited > callTimeout+5*time.Second {
			t.Errorf("%d %s after %v", w.Code, w.Body, waited)
		}
	})
}

// spending is a backend like Redlock: a refused attempt releases its Owner, which must make no other one.
type spending struct {
	*memlock.Backend
	t        *testing.T
	mu       sync.Mutex
	spent    map[string]bool
	attempts int
}

func (b *spending) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.attempts++
	if b.spent[r.Owner] {
		b.t.Errorf("attempt %d is by an Owner that was released", b.attempts)
	}
	g, err := b.Backend.Acquire(ctx, r)
	if errors.Is(err, driver.ErrHeld) {
		b.spent[r.Owner] = true
		_ = b.Backend.Release(ctx, r.Hold)
		err = driver.Spent(err)
	}
	return g, err
}

// No attempt repeats an Owner that an earlier one has released: the server makes a fresh Owner, or leaves that to the
// client, which is answered after a pause.
func TestWaitWithFreshOwners(t *testing.T) {
	t.Parallel()
	for what, acquire := range map[string]func(ctx context.Context, s *Server, owner string) *httptest.ResponseRecorder{
		"the server's": func(ctx context.Context, s *Server, _ string) *httptest.ResponseRecorder {
			return bare(ctx, s, "POST", "/v1/locks/x?wait=1m", "")
		},
		"the client's": func(ctx context.Context, s *Server, owner string) *httptest.ResponseRecorder {
			return bare(ctx, s, "POST", "/v1/acquire", waiting("x", owner, 60_000))
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := &spending{Backend: memlock.New(), t: t, spent: map[string]bool{}}
				s := must.Get(New(b, Options{}))(t)
				answers(t, s, 200, "POST", "/v1/acquire", hold("x", ownerA))
				began := time.Now()
				go func() {
					time.Sleep(9500 * time.Millisecond)
					bare(t.Context(), s, "POST", "/v1/release", hold("x", ownerA))
				}()
				for requests := 1; ; requests++ {
					w := acquire(t.Context(), s, driver.NewOwner())
					if w.Code == 200 {
						break
					}
					if what == "the server's" || !strings.Contains(w.Body.String(), `"spent":true`) {
						t.Fatalf("request %d: %d %s", requests, w.Code, w.Body)
					}
				}
				if waited := time.Since(began); waited > 10*time.Second || b.attempts > 200 {
					t.Errorf("%d attempts in %v, of which the lock was held for 9.5 s: want one after each 0.1 s", b.attempts, waited)
				}
				expect.Equal(t, countedWaiters(s, "x"), 0, "wait for a lock that was granted")
			})
		})
	}
}

func countedWaiters(s *Server, name string) int {
	_, use := s.seen.History(name)
	return use.Waiting
}

// However a wait ends, its answer says that the Owner was released.
func TestAnswersSayThatTheOwnerWasReleased(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := &spending{Backend: memlock.New(), t: t, spent: map[string]bool{}}
		s := must.Get(New(b, Options{MaxStreams: 1}))(t)
		answers(t, s, 200, "POST", "/v1/acquire", hold("x", ownerA))
		answer := make(chan *httptest.ResponseRecorder)
		go func() { answer <- bare(t.Context(), s, "POST", "/v1/acquire", waiting("x", ownerB, 60_000)) }()
		synctest.Wait()
		if w := bare(t.Context(), s, "POST", "/v1/acquire", waiting("x", driver.NewOwner(), 60_000)); w.Code != 429 || !strings.Contains(w.Body.String(), `"spent":true`) {
			t.Errorf("one wait too many: %d %s", w.Code, w.Body)
		}
		must.OK(t, s.Drain(t.Context()))
		if w := <-answer; w.Code != 503 || !strings.Contains(w.Body.String(), `"spent":true`) {
			t.Errorf("a wait that the server has ended: %d %s", w.Code, w.Body)
		}
		expect.Equal(t, countedWaiters(s, "x"), 0, "wait")
	})
}

// An Owner waits no longer once it was released, also if it had nothing.
func TestReleasedWaiterDoesNotCount(t *testing.T) {
	t.Parallel()
	s := serverOf(t, Options{})
	answers(t, s, 200, "POST", "/v1/acquire", hold("x", ownerA))
	if w := bare(t.Context(), s, "POST", "/v1/acquire", waiting("x", ownerB, 1)); w.Code != 423 || countedWaiters(s, "x") != 1 {
		t.Fatalf("%d, and %d wait", w.Code, countedWaiters(s, "x"))
	}
	must.OK(t, s.backend.Release(t.Context(), driver.Hold{Name: "x", Owner: ownerB, Mode: driver.Exclusive}))
	if w := bare(t.Context(), s, "POST", "/v1/release", hold("x", ownerB)); w.Code != 410 || countedWaiters(s, "x") != 0 {
		t.Errorf("%d, and %d wait", w.Code, countedWaiters(s, "x"))
	}
}

// failing is a backend whose attempts have released their Owners, as far as they know.
type failing struct{ *memlock.Backend }

func (failing) Acquire(context.Context, driver.Request) (driver.Grant, error) {
	return driver.Grant{}, driver.Spent(errors.New("no answer"))
}

// What was released does not count for an identity, even if that is not certain: clients have a fresh Owner each time.
func TestQuotaOfReleasedOwners(t *testing.T) {
	t.Parallel()
	s := must.Get(New(failing{memlock.New()}, Options{MaxHolds: 2}))(t)
	for range 10 {
		answers(t, s, 503, "POST", "/v1/acquire", hold("x", driver.NewOwner()))
	}
}

// leaving is a backend that counts releases, and whose grants come once the client has left.
type leaving struct {
	*memlock.Backend
	leave    context.CancelFunc // nil: it stays
	releases int
}

func (l *leaving) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	g, err := l.Backend.Acquire(ctx, r)
	if l.leave != nil {
		l.leave()
	}
	return g, err
}

func (l *leaving) Release(ctx context.Context, h driver.Hold) error {
	l.releases++
	return l.Backend.Release(ctx, h)
}

// A simple acquire leaves nothing under an owner that only the server knows, and releases only what may be there.
func TestSimpleAcquireLeavesNothing(t *testing.T) {
	t.Parallel()
	b := &leaving{Backend: memlock.New()}
	s := must.Get(New(b, Options{}))(t)
	try := func(ctx context.Context, name, query string, header ...string) *httptest.ResponseRecorder {
		return bare(ctx, s, "POST", "/v1/locks/"+name+query, "", header...)
	}
	if w := try(t.Context(), "x", "", "Distlock-Owner", ownerA); w.Code != 200 {
		t.Fatal(w.Code)
	}
	if w := try(t.Context(), "x", ""); w.Code != 423 || b.releases != 0 {
		t.Errorf("a refused try: %d, and %d releases", w.Code, b.releases)
	}
	if w := try(t.Context(), "x", "?wait=1ms"); w.Code != 423 || b.releases != 1 {
		t.Errorf("a wait that was over: %d, and %d releases", w.Code, b.releases)
	}
	ctx, cancel := context.WithCancel(t.Context())
	b.leave = cancel
	try(ctx, "y", "")
	if info, err := b.Inspect(t.Context(), "y"); err != nil || len(info.Holders) != 0 || b.releases != 2 {
		t.Errorf("after a grant for a client that has gone: %+v, %v, %d releases", info, err, b.releases)
	}
	ctx, cancel = context.WithCancel(t.Context())
	b.leave = cancel
	try(ctx, "y", "", "Distlock-Owner", ownerA)
	if info, err := b.Inspect(t.Context(), "y"); err != nil || len(info.Holders) != 1 || b.releases != 2 {
		t.Errorf("after a grant for an owner that the client has made: %+v, %v, %d releases", info, err, b.releases)
	}
}

// A refusal says that the client's stream tells of all that helps only if this server has that stream.
func TestWhoIsSignaled(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := serverOf(t, Options{})
		answers(t, s, 200, "POST", "/v1/acquire", hold("x", ownerA))
		queued := strings.Replace(hold("x", ownerB), "{", `{"queue":true,`, 1)
		told := func() bool {
			w := bare(t.Context(), s, "POST", "/v1/acquire", queued)
			expect.Equal(t, w.Code, 423, w.Body)
			return strings.Contains(w.Body.String(), `"signaled":true`)
		}
		expect.Equal(t, told(), false, "without a stream")
		ctx, end := context.WithCancel(t.Context())
		go bare(ctx, s, "POST", "/v1/watch", queued)
		synctest.Wait()
		expect.Equal(t, told(), true, "with one")
		end()
		synctest.Wait()
		expect.Equal(t, told(), false, "after its end")
	})
}
