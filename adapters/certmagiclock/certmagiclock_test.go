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
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
)

// servers makes storages of different servers before one folder.
func servers(t *testing.T) func() *Storage {
	store, dir := memlock.NewStore(), t.TempDir()
	return func() *Storage {
		c := must.Get(distlock.New(store.Connect(), nil))(t)
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
				expect.OK(t, count(t.Context(), s))
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
	expect.Be(t, b.Lock(ctx, "x"), context.DeadlineExceeded, "a wait that ended")
	expect.OK(t, a.Unlock(t.Context(), "x"))
	expect.OK(t, b.Lock(t.Context(), "x"), "after the unlock")
}

// certmagic itself uses the storage and its locks, to manage what only it can see: it keeps an account and
// takes a lock to clean up.
func TestCertmagicUsesIt(t *testing.T) {
	s := servers(t)()
	expect.OK(t, certmagic.CleanStorage(t.Context(), s, certmagic.CleanStorageOptions{}))
	expect.OK(t, expect.Err(s.Stat(t.Context(), "last_clean.json")), "certmagic has not cleaned")
	expect.Equal(t, len(s.leases), 0, "locks are held after it")
}

// An Unlock after a loss does not release the lock that another call has taken since.
func TestUnlockAfterALoss(t *testing.T) {
	s := servers(t)()
	s.opts = []distlock.LockOption{distlock.MaxHold(50 * time.Millisecond), distlock.WithTTL(time.Second)}
	must.OK(t, s.Lock(t.Context(), "x"))
	<-s.leases["x"][0].Context().Done()
	must.OK(t, s.Lock(t.Context(), "x"))
	second := s.leases["x"][1]
	expect.Be(t, s.Unlock(t.Context(), "x"), distlock.ErrLost, "unlock of the lost one")
	if errors.Is(second.Err(), distlock.ErrReleased) {
		t.Error("it released the other one")
	}
}
