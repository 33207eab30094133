package certmagiclock

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/caddyserver/certmagic"
	"github.com/distlock/distlock"
	"github.com/distlock/distlock/backend/memlock"
)

// servers makes storages of different servers before one folder.
func servers(t *testing.T) func() *Storage {
	store, dir := memlock.NewStore(), t.TempDir()
	return func() *Storage {
		c, err := distlock.New(store.Connect(), nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return New(&certmagic.FileStorage{Path: dir}, c, "caddy:")
	}
}

// Servers take turns, and what one stores the next one loads.
func TestTurns(t *testing.T) {
	next := servers(t)
	const turns = 20
	var wg sync.WaitGroup
	for range 3 {
		s := next()
		wg.Go(func() {
			for range turns {
				if err := count(t.Context(), s); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if got, err := next().Load(t.Context(), "n"); err != nil || len(got) != 3*turns {
		t.Errorf("%d turns, want %d, %v", len(got), 3*turns, err)
	}
}

// count adds a byte to a file, under the lock.
func count(ctx context.Context, s *Storage) error {
	if err := s.Lock(ctx, "issue_cert_example.com"); err != nil {
		return err
	}
	text, err := s.Load(ctx, "n")
	if s.Exists(ctx, "n") && err != nil {
		return err
	}
	return errors.Join(s.Store(ctx, "n", append(text, 'x')), s.Unlock(ctx, "issue_cert_example.com"))
}

func TestTryLock(t *testing.T) {
	next := servers(t)
	a, b := next(), next()
	if ok, err := a.TryLock(t.Context(), "x"); !ok || err != nil {
		t.Fatal(ok, err)
	}
	if ok, err := b.TryLock(t.Context(), "x"); ok || err != nil {
		t.Errorf("the second: %t, %v", ok, err)
	}
	if err := b.Unlock(t.Context(), "x"); err == nil {
		t.Error("one that does not hold has unlocked")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := b.Lock(ctx, "x"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a wait that ended: %v", err)
	}
	if err := a.Unlock(t.Context(), "x"); err != nil {
		t.Error(err)
	}
	if err := b.Lock(t.Context(), "x"); err != nil {
		t.Errorf("after the unlock: %v", err)
	}
}

// certmagic itself uses the storage and its locks, to manage what only it can see: it keeps an account and
// takes a lock to clean up.
func TestCertmagicUsesIt(t *testing.T) {
	s := servers(t)()
	if err := certmagic.CleanStorage(t.Context(), s, certmagic.CleanStorageOptions{}); err != nil {
		t.Error(err)
	}
	if _, err := s.Stat(t.Context(), "last_clean.json"); err != nil {
		t.Errorf("certmagic has not cleaned: %v", err)
	}
	if len(s.leases) != 0 {
		t.Errorf("%d locks are held after it", len(s.leases))
	}
}

// An Unlock after a loss does not release the lock that another call has taken since.
func TestUnlockAfterALoss(t *testing.T) {
	s := servers(t)()
	s.opts = []distlock.LockOption{distlock.MaxHold(50 * time.Millisecond), distlock.WithTTL(time.Second)}
	if err := s.Lock(t.Context(), "x"); err != nil {
		t.Fatal(err)
	}
	<-s.leases["x"][0].Context().Done()
	if err := s.Lock(t.Context(), "x"); err != nil {
		t.Fatal(err)
	}
	second := s.leases["x"][1]
	if err := s.Unlock(t.Context(), "x"); !errors.Is(err, distlock.ErrLost) {
		t.Errorf("unlock of the lost one: %v", err)
	}
	if errors.Is(second.Err(), distlock.ErrReleased) {
		t.Error("it released the other one")
	}
}
