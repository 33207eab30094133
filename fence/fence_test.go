package fence_test

import (
	"context"
	"errors"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/distlock/distlock/fence"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
)

var _ fence.Guard = (*fence.Memory)(nil)

func enter(t *testing.T, m *fence.Memory, f uint64) (leave func()) {
	t.Helper()
	leave = must.Get(m.Enter(t.Context(), "a", f))(t)
	return leave
}

func TestMemoryLetsOnlyGreaterFencesIn(t *testing.T) {
	var m fence.Memory
	for _, step := range []struct {
		resource string
		fence    uint64
		want     error
	}{
		{"a", 33, nil}, {"a", 33, nil}, {"a", 34, nil}, {"a", 33, fence.ErrStale}, {"a", 34, nil}, {"b", 1, nil},
		{"a", 0, fence.ErrInvalid}, {"", 35, fence.ErrInvalid}, {"\xff", 35, fence.ErrInvalid}, {"a\x00", 35, fence.ErrInvalid},
		{strings.Repeat("n", fence.MaxResource+1), 35, fence.ErrInvalid},
	} {
		inside := false
		err := m.Do(t.Context(), step.resource, step.fence, func() error { inside = true; return nil })
		if !errors.Is(err, step.want) || inside != (step.want == nil) {
			t.Errorf("%+v: inside %v, %v", step, inside, err)
		}
	}
}

func TestStaleErrorDetails(t *testing.T) {
	var m fence.Memory
	enter(t, &m, 34)()
	_, err := m.Enter(t.Context(), "a", 33)
	var stale *fence.StaleError
	if !errors.As(err, &stale) || *stale != (fence.StaleError{Resource: "a", Fence: 33, Seen: 34}) {
		t.Errorf("%+v", stale)
	}
	const want = `stale fence: 33 for "a" after 34; another client has held the lock since`
	if err.Error() != want {
		t.Errorf("%q", err)
	}
}

// A greater fence waits for smaller ones to leave, and keeps new ones out.
func TestMemoryWaitsForTheSmaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m fence.Memory
		leave1, leave2 := enter(t, &m, 33), enter(t, &m, 33)
		var order []string
		var wg sync.WaitGroup
		wg.Go(func() {
			leave := enter(t, &m, 34)
			order = append(order, "34 in")
			leave()
		})
		synctest.Wait()
		expect.Be(t, expect.Err(m.Enter(t.Context(), "a", 33)), fence.ErrStale, "33 while 34 waits")
		leave1()
		leave1() // a second call of leave has no effect
		synctest.Wait()
		order = append(order, "33 out")
		leave2()
		wg.Wait()
		if strings.Join(order, ", ") != "33 out, 34 in" {
			t.Error(order)
		}
	})
}

// A waiting fence becomes stale when a greater one arrives.
func TestMemoryIsPassedByTheGreatest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m fence.Memory
		leave := enter(t, &m, 33)
		results := map[uint64]error{}
		var mu sync.Mutex
		var wg sync.WaitGroup
		for _, f := range []uint64{34, 35, 35} {
			wg.Go(func() {
				err := m.Do(t.Context(), "a", f, func() error { return nil })
				mu.Lock()
				defer mu.Unlock()
				results[f] = errors.Join(results[f], err)
			})
			synctest.Wait()
		}
		leave()
		wg.Wait()
		if !errors.Is(results[34], fence.ErrStale) || results[35] != nil {
			t.Error(results)
		}
	})
}

// The cause of the caller's context is a part of the text only: it could pass for a refusal.
func TestMemoryGivesUpWaiting(t *testing.T) {
	var m fence.Memory
	defer enter(t, &m, 33)()
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(fence.ErrStale)
	if _, err := m.Enter(ctx, "a", 34); !errors.Is(err, context.Canceled) || errors.Is(err, fence.ErrStale) || !strings.Contains(err.Error(), fence.ErrStale.Error()) {
		t.Error(err)
	}
	expect.Be(t, expect.Err(m.Enter(t.Context(), "a", 33)), fence.ErrStale, "34 was presented")
}

func TestForget(t *testing.T) {
	var m fence.Memory
	leave := enter(t, &m, 34)
	if m.Forget("a") {
		t.Error("forgotten while a call is inside")
	}
	leave()
	if !m.Forget("a") || !m.Forget("never seen") {
		t.Error("not forgotten")
	}
	enter(t, &m, 33)()
}

func TestCheck(t *testing.T) {
	for _, c := range []struct {
		fence, seen uint64
		want        error
	}{{33, 0, nil}, {33, 33, nil}, {34, 33, nil}, {33, 34, fence.ErrStale}, {0, 0, fence.ErrInvalid}} {
		if err := fence.Check("a", c.fence, c.seen); !errors.Is(err, c.want) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// The service that keeps the data needs no lock, no coordinator and no client library.
func TestImportsTheStandardLibraryOnly(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}", "./...").Output()
	must.OK(t, err, "go list")
	names := strings.Fields(string(out))
	if len(names) != 4 {
		t.Errorf("want this package and the three below it: %v", names)
	}
	for _, name := range names {
		if !strings.HasPrefix(name, "github.com/distlock/distlock/fence") {
			t.Errorf("%s belongs neither to the standard library nor to this package", name)
		}
	}
}
