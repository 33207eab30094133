package occ_test

import (
	"context"
	"errors"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock/distlock/occ"
)

// cell is a number with a version, in memory.
type cell struct {
	mu    sync.Mutex
	value versioned
}

type versioned struct{ n, version int }

func (c *cell) load(context.Context) (versioned, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.value, nil
}

func (c *cell) store(_ context.Context, old, new versioned) (bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.value.version != old.version {
		return false, nil
	}
	c.value = versioned{new.n, old.version + 1}
	return true, nil
}

func more(_ context.Context, v versioned) (versioned, error) {
	v.n++
	return v, nil
}

func TestNothingIsLost(t *testing.T) {
	var c cell
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for range 50 {
				if _, err := occ.Update(t.Context(), c.load, more, c.store, occ.Attempts(1000)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if c.value.n != 800 {
		t.Errorf("%d of 800 were counted", c.value.n)
	}
}

// never is a store function that always reports a conflict.
func never(context.Context, versioned, versioned) (bool, error) { return false, nil }

// The pauses are random. Their bound doubles up to the maximum.
func TestBackoff(t *testing.T) {
	longest := make([]time.Duration, 9)
	for range 200 {
		synctest.Test(t, func(t *testing.T) {
			var c cell
			var calls []time.Time
			load := func(ctx context.Context) (versioned, error) {
				calls = append(calls, time.Now())
				return c.load(ctx)
			}
			conflicts := 0
			_, err := occ.Update(t.Context(), load, more, never, occ.Attempts(10),
				occ.Backoff(10*time.Millisecond, 100*time.Millisecond), occ.OnConflict(func(int) { conflicts++ }))
			if !errors.Is(err, occ.ErrConflict) || !strings.Contains(err.Error(), "10 attempts") {
				t.Errorf("%v, want ErrConflict", err)
			}
			if len(calls) != 10 || conflicts != 10 {
				t.Fatalf("%d attempts, %d conflicts", len(calls), conflicts)
			}
			for i := range longest {
				longest[i] = max(longest[i], calls[i+1].Sub(calls[i]))
			}
		})
	}
	for i, d := range longest {
		bound := min(10*time.Millisecond<<i, 100*time.Millisecond)
		if d > bound || d < bound*8/10 {
			t.Errorf("pause %d: at most %v in 200 runs, want nearly %v", i+1, d, bound)
		}
	}
}

func TestContextEndsTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var c cell
		start := time.Now()
		_, err := occ.Update(ctx, c.load, more, never, occ.Attempts(1<<30), occ.Backoff(time.Minute, time.Hour))
		if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, occ.ErrConflict) || time.Since(start) != time.Second {
			t.Errorf("%v after %v", err, time.Since(start))
		}
	})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var c cell
	if _, err := occ.Update(ctx, c.load, more, c.store); !errors.Is(err, context.Canceled) || c.value.n != 0 {
		t.Errorf("a context that had ended: %v, %v", err, c.value)
	}
}

// An error of a caller's function ends Update at once, and is returned unchanged.
func TestErrorsAreReturned(t *testing.T) {
	wrong := errors.New("wrong")
	var c cell
	calls := 0
	load := func(context.Context) (versioned, error) { calls++; return versioned{}, wrong }
	change := func(context.Context, versioned) (versioned, error) { calls++; return versioned{n: 7}, wrong }
	store := func(context.Context, versioned, versioned) (bool, error) { calls++; return true, wrong }
	for name, update := range map[string]func() (versioned, error){
		"load":   func() (versioned, error) { return occ.Update(t.Context(), load, more, c.store) },
		"change": func() (versioned, error) { return occ.Update(t.Context(), c.load, change, c.store) },
		"store":  func() (versioned, error) { return occ.Update(t.Context(), c.load, more, store) },
	} {
		calls = 0
		if v, err := update(); err != wrong || v.n != 0 || calls != 1 || c.value.n != 0 {
			t.Errorf("%s: %v, %v after %d calls", name, v, err, calls)
		}
	}
}

func TestOptionsOfNoSense(t *testing.T) {
	var c cell
	for _, opt := range []occ.Option{occ.Attempts(0), occ.Backoff(0, time.Second), occ.Backoff(time.Second, time.Millisecond)} {
		if _, err := occ.Update(t.Context(), c.load, more, c.store, opt); err == nil || c.value.n > 0 {
			t.Errorf("taken: %v", err)
		}
	}
}

// A program that imports occ gets no other dependencies.
func TestImportsTheStandardLibraryOnly(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "-test", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	for name := range strings.FieldsSeq(string(out)) {
		if !strings.HasPrefix(name, "github.com/distlock/distlock/occ") && !strings.HasPrefix(name, "[") {
			t.Errorf("occ needs %s", name)
		}
	}
}
