package page

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/server/internal/seen"
)

// pageOf returns the page of a server of a backend.
func pageOf(b driver.Inspector) *Page { return New(Options{Inspector: b, Seen: seen.New()}) }

// shows returns what the page shows to one who may see everything.
func (p *Page) shows(t *testing.T, q Query) string {
	t.Helper()
	w := httptest.NewRecorder()
	must.OK(t, p.Show(Answer{w, httptest.NewRequestWithContext(t.Context(), "GET", "/", nil), viewerOf(true)}, q))
	return w.Body.String()
}

func take(t *testing.T, b driver.Backend, name string, mode driver.Mode, limit int, meta map[string]string) {
	t.Helper()
	h := driver.Hold{Name: name, Owner: driver.NewOwner(), Mode: mode, TTL: 30 * time.Second}
	must.Get(b.Acquire(t.Context(), driver.Request{Hold: h, Fences: 1, Limit: limit, Meta: meta}))(t)
}

// A thousand locks are listed at once, and the others are counted.
func TestManyLocks(t *testing.T) {
	t.Parallel()
	b := memlock.New()
	for i := range mostRows + 10 {
		take(t, b, fmt.Sprintf("n%04d", i), driver.Exclusive, 0, nil)
	}
	text := pageOf(b).shows(t, Query{Page: "locks", Sort: "name"})
	if n := strings.Count(text, "<tr id="); n != mostRows || !strings.Contains(text, "1000 of 1010 locks") {
		t.Errorf("%d rows", n)
	}
}

// A lock that was not inspected yet is not called free.
func TestHeldLocksAreNotFree(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := memlock.New()
		names := mostInspects + 500
		for i := range names {
			take(t, b, fmt.Sprintf("n%04d", i), driver.Exclusive, 0, nil)
		}
		p := pageOf(b)
		p.shows(t, Query{Page: "locks"})
		for i := range names {
			name := fmt.Sprintf("n%04d", i)
			if text := p.shows(t, Query{Page: "lock", Name: name}); strings.Contains(text, "The lock is free") || !strings.Contains(text, `class="card"`) {
				t.Fatalf("%s is held:\n%s", name, text)
			}
		}
		take(t, b, "new", driver.Exclusive, 0, nil)
		w := p.Watch(Query{Page: "lock", Name: "new"})
		defer w.Close()
		<-w.Fresh
		if text := string(w.Changes(t.Context(), viewerOf(true), 0)); strings.Contains(text, "The lock is free") || !strings.Contains(text, "card") {
			t.Errorf("the first change of a lock that is held:\n%s", text)
		}
	})
}

// A lock whose inspection fails may be held.
func TestLockThatIsNotKnown(t *testing.T) {
	t.Parallel()
	text := pageOf(blind{memlock.New()}).shows(t, Query{Page: "lock", Name: "x"})
	if strings.Contains(text, "The lock is free") || !strings.Contains(text, `<p class="none">unknown</p>`) {
		t.Error(text)
	}
}

// blind is a backend that lists locks, and does not answer what holds them.
type blind struct{ *memlock.Backend }

func (blind) Inspect(context.Context, string) (driver.Info, error) {
	return driver.Info{}, errors.New("no answer")
}

// One lock with many holders, and with long metadata, doesn't fill the page.
func TestManyHolders(t *testing.T) {
	t.Parallel()
	b := memlock.New()
	for range mostParties + 3 {
		take(t, b, "x", driver.Counted, 999, map[string]string{"note": strings.Repeat("y", 1<<20)})
	}
	text := pageOf(b).shows(t, Query{Page: "lock", Name: "x"})
	if n := strings.Count(text, `class="card"`); n != mostParties || !strings.Contains(text, "203 of 999 permits") || !strings.Contains(text, "and 3 more") || len(text) > 500_000 {
		t.Errorf("%d holders, %d bytes", n, len(text))
	}
}
