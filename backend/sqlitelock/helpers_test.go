package sqlitelock

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
)

// long is a TTL that doesn't end within a test.
const long = time.Hour

func lockFile(t testing.TB) string {
	t.Helper()
	return filepath.Join(t.TempDir(), "locks.db")
}

// connect opens path, as another process would.
func connect(t testing.TB, path string) *Backend {
	t.Helper()
	return connectWith(t, path, nil)
}

func connectWith(t testing.TB, path string, opt *Options) *Backend {
	t.Helper()
	b, err := OpenFile(context.Background(), path, opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

func request(name string, mode driver.Mode, ttl time.Duration) driver.Request {
	r := driver.Request{Hold: driver.Hold{Name: name, Owner: driver.NewOwner(), Mode: mode, TTL: ttl}, Fences: 1}
	if mode == driver.Counted {
		r.Limit = 2
	}
	return r
}

func take(t testing.TB, b *Backend, r driver.Request) driver.Grant {
	t.Helper()
	g, err := b.Acquire(t.Context(), r)
	if err != nil {
		t.Fatalf("acquire %q: %v", r.Name, err)
	}
	return g
}

func refused(t testing.TB, b *Backend, r driver.Request) *driver.HeldError {
	t.Helper()
	g, err := b.Acquire(t.Context(), r)
	var held *driver.HeldError
	if !errors.As(err, &held) {
		t.Fatalf("acquire %q: %+v, %v; want a refusal", r.Name, g, err)
	}
	return held
}

func free(t testing.TB, b *Backend, r driver.Request) {
	t.Helper()
	if err := b.Release(t.Context(), r.Hold); err != nil {
		t.Fatalf("release %q: %v", r.Name, err)
	}
}

func wantIs(t testing.TB, err, target error) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Fatalf("got %v; want %v", err, target)
	}
}
