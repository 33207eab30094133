package kubelock

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/locktest"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/oddnames"
)

const driverTTL = time.Minute

func (b *Backend) store() *store { return b.leases }

// answers lets all requests for Leases with a method have one answer.
func answers(method string, code int, message string) func(http.ResponseWriter, *http.Request) bool {
	return func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != method || r.URL.Path == "/version" {
			return false
		}
		fail(w, code, "", message)
		return true
	}
}

// A refusal has taken nothing, and says what helps. It is ErrInvalid for a backend that has never worked.
func TestRefusals(t *testing.T) {
	t.Parallel()
	const forbidden = `leases.coordination.k8s.io "a" is forbidden: User "app" cannot update resource "leases" in API group "coordination.k8s.io" in the namespace "shop"`
	for _, c := range []struct {
		method  string
		code    int
		message string
		first   bool // ErrInvalid at first
		words   []string
	}{
		{http.MethodGet, 401, "Unauthorized", true, []string{"401", "login"}},
		{http.MethodGet, 403, strings.Replace(forbidden, "update", "get", 1), true, []string{"403", "the verb get", "leases of coordination.k8s.io", "namespace shop", `User "app"`}},
		{http.MethodGet, 302, "at the login page", true, []string{"302", "login page"}},
		{http.MethodPut, 403, forbidden, false, []string{"the verb update"}},
		{http.MethodPost, 403, "exceeded quota", true, []string{"exceeded quota"}},
		{http.MethodPost, 404, `namespaces "shop" not found`, true, []string{"namespace that exists", "shop"}},
		{http.MethodPost, 422, "not so", false, []string{"422", "not so"}},
		{http.MethodPost, 429, "slowly", false, []string{"429", "slowly"}},
	} {
		f := newFake(t)
		b := open(t, f.url())
		if c.method == http.MethodPut {
			locktest.Acquire(t, b, request("a"))
			must.OK(t, freeByForce(t, b, "a"))
		}
		f.setFault(answers(c.method, c.code, c.message))
		_, err := b.Acquire(t.Context(), request("a"))
		locktest.Fails(t, c.message, err, c.first, c.words...)
		if !c.first && !errors.Is(err, driver.ErrUnsent) {
			t.Errorf("%s: %v; want that nothing was sent", c.message, err)
		}
		f.setFault(nil)
		locktest.Acquire(t, b, request("a"))
		f.setFault(answers(c.method, c.code, c.message))
		if _, err := b.Acquire(t.Context(), request("another")); driver.Final(err) {
			t.Errorf("%s, later: %v", c.message, err)
		}
	}
}

func freeByForce(t *testing.T, b *Backend, name string) error {
	info := must.Get(b.Inspect(t.Context(), name))(t)
	return b.Release(t.Context(), driver.Hold{Name: name, Owner: info.Holders[0].Owner, Mode: driver.Exclusive})
}

// A write that fails on the server is unknown, and a connection that can't be opened is not.
func TestUnknown(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	b := open(t, f.url())
	var fails atomic.Bool
	fails.Store(true)
	f.setFault(func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path != "/version" && fails.Load() {
			fail(w, http.StatusGatewayTimeout, "", "etcdserver: request timed out")
			return true
		}
		return false
	})
	if err := b.Release(t.Context(), request("a").Hold); err == nil || errors.Is(err, driver.ErrUnsent) || errors.Is(err, driver.ErrLost) {
		t.Errorf("release: %v", err)
	}
	fails.Store(false)
	f.CloseClientConnections()
	f.Close()
	expect.Be(t, expect.Err(b.Acquire(t.Context(), request("a"))), driver.ErrUnsent, "no server")
}

// What a server refuses because it is busy was not done, and its waiters read less often for a while.
func TestBusy(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	b := open(t, f.url())
	f.setFault(answers(http.MethodGet, 429, "slowly"))
	waiter := request("a")
	expect.Be(t, expect.Err(b.Acquire(t.Context(), waiter)), driver.ErrUnsent)
	locktest.Eventually(t, "a client reads less often", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		_, err := b.Acquire(ctx, waiter)
		return strings.Contains(err.Error(), "may read once in")
	})
	f.setFault(nil)
	locktest.Acquire(t, b, request("a"))
}

// An uncontended pair takes two writes, and the first one a read.
func TestRequests(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	b := open(t, f.url()+"&prefix=app/")
	for range 2 {
		r := request("a")
		locktest.Acquire(t, b, r)
		locktest.Release(t, b, r)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	const one = fakePath + "/app0x2fa"
	want := []string{"GET /version", "POST " + fakePath, "GET " + one, "POST " + fakePath, "PUT " + one, "PUT " + one, "PUT " + one}
	if !slices.Equal(f.requests, want) {
		t.Errorf("%q", f.requests)
	}
}

// Names and metadata come back as they were given, and a backend sees the names below its prefix alone.
func TestOddNames(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	locktest.Acquire(t, open(t, f.url()), request("outside"))
	oddnames.Try(t, must.Get(Open(t.Context(), f.url()+"&prefix=Team/"))(t), nil)
}

// A waiter is woken by a release, by a Lease that is deleted, and after a stream that has ended.
func TestWatch(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	b, other := open(t, f.url()), open(t, f.url())
	r := request("a")
	locktest.Acquire(t, b, r)
	w := locktest.Watch(t, other, request("a"))
	select {
	case <-w.Ready:
		t.Error("a signal without a change")
	case <-time.After(10 * time.Millisecond):
	}
	locktest.Release(t, b, r)
	locktest.Signalled(t, w, "a release")
	before := f.gets()
	next := request("a")
	locktest.Acquire(t, other, next) // from what the watch has told
	locktest.Release(t, other, next)
	expect.Equal(t, f.gets(), before, "GETs of a waiter that was woken")
	locktest.Signalled(t, w, "its own release")
	f.mu.Lock()
	f.tell("DELETED", "a")
	f.mu.Unlock()
	locktest.Signalled(t, w, "a deletion")
	for what, last := range map[string]string{
		"410": `{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired"}}`, "rubbish": `<`, "an end": `{"type":"BOOKMARK","object":{}}`,
	} {
		f.endWatches(last)
		locktest.Signalled(t, w, "after "+what)
		locktest.Eventually(t, "the stream is open again after "+what, func() bool {
			f.mu.Lock()
			defer f.mu.Unlock()
			return len(f.watchers) == 1
		})
	}
	locktest.Acquire(t, b, r)
	locktest.Signalled(t, w, "a change after all that")
}

// life counts the contexts that end with it.
type life struct {
	context.Context
	done  chan struct{}
	count atomic.Int32
}

func (l *life) Done() <-chan struct{} { return l.done }

func (l *life) AfterFunc(func()) (stop func() bool) {
	l.count.Add(1)
	return func() bool { return l.count.Add(-1) >= 0 }
}

// A watch whose stream ends again and again keeps nothing of each.
func TestStreamsAreForgotten(t *testing.T) {
	t.Parallel()
	l := &life{Context: context.Background(), done: make(chan struct{})}
	f := newFake(t)
	b := open(t, f.url())
	for range 3 {
		forward := must.Get(b.store().stream(t.Context(), l, "a"))(t)
		f.endWatches(`{"type":"ERROR"}`)
		forward(nil)
	}
	expect.Equal(t, l.count.Load(), 0, "contexts that are kept")
}

// Requests share a connection, also if an answer goes on behind its JSON.
func TestRequestsShareAConnection(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	var connections sync.Map
	f.setFault(func(w http.ResponseWriter, r *http.Request) bool {
		connections.Store(r.RemoteAddr, true)
		if r.URL.Path == "/version" {
			return false
		}
		_, err := w.Write([]byte(`{"metadata":{"resourceVersion":"1"}}` + strings.Repeat("\n", 10_000)))
		return err == nil
	})
	b := open(t, f.url())
	const calls = 50
	for range calls {
		must.Get(b.Inspect(t.Context(), "a"))(t)
	}
	n := 0
	connections.Range(func(any, any) bool { n++; return true })
	if n > calls/2 { // on a busy machine some are not free again in time
		t.Errorf("%d connections for %d calls", n, calls)
	}
}

// While a right to watch is missing, waiters poll.
func TestWithoutTheRightToWatch(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	b := open(t, f.url())
	locktest.Acquire(t, b, request("a"))
	f.setFault(func(w http.ResponseWriter, r *http.Request) bool {
		if !r.URL.Query().Has("watch") {
			return false
		}
		fail(w, http.StatusForbidden, "leases", "User cannot watch resource")
		return true
	})
	_, err := b.Watch(t.Context(), request("a"))
	locktest.Fails(t, "watch", err, false, "the verb watch")
}
