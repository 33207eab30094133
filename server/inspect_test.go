package server

import (
	"context"
	"fmt"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
)

// listing is a backend with many names, in no order. Its lists wait for go on, if that is not nil.
type listing struct {
	*memlock.Backend
	names  []string
	goOn   chan struct{}
	active atomic.Int32
}

func (l *listing) List(ctx context.Context, prefix string, yield func(string) bool) error {
	l.active.Add(1)
	defer l.active.Add(-1)
	if l.goOn != nil {
		select {
		case <-l.goOn:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	for _, name := range l.names {
		if strings.HasPrefix(name, prefix) && !yield(name) {
			return nil
		}
	}
	return nil
}

// A page of a list holds about as many names in memory as it has, and the pages together have each name once.
func TestListKeepsOnePage(t *testing.T) {
	t.Parallel()
	l := &listing{Backend: memlock.New()}
	for i := range 10_000 {
		l.names = append(l.names, fmt.Sprintf("n%04d", i*7919%10_000))
	}
	s := must.Get(New(l, Options{}))(t)
	var all []string
	for after := ""; ; after = all[len(all)-1] {
		names, err := s.inspection.names(t.Context(), fullIdentity, "n", after, 10)
		if err != nil || len(names) > 11 || cap(names) > 100 {
			t.Fatalf("%d names in room for %d, %v", len(names), cap(names), err)
		}
		all = append(all, names[:min(len(names), 10)]...)
		if len(names) <= 10 {
			break
		}
	}
	if slices.Sort(l.names); !slices.Equal(all, l.names) {
		t.Errorf("%d names: %.20q…", len(all), all)
	}
}

// Few lists run at once: each may read all keys of the backend.
func TestListsAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := &listing{Backend: memlock.New(), names: []string{"x"}, goOn: make(chan struct{})}
		s := must.Get(New(l, Options{}))(t)
		answers := make(chan *httptest.ResponseRecorder, 10)
		for range 10 {
			go func() { answers <- bare(t.Context(), s, "GET", "/v1/locks", "") }()
		}
		synctest.Wait()
		expect.Equal(t, l.active.Load(), 4, "lists at once")
		close(l.goOn)
		for range 10 {
			if w := <-answers; w.Code != 200 || !strings.Contains(w.Body.String(), `"x"`) {
				t.Errorf("%d %s", w.Code, w.Body)
			}
		}
	})
}
