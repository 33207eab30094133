package snippets

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/distlocktest"
)

// shop is code that uses a lock.
type shop struct {
	locks       *distlock.Client
	stock       int
	beforeWrite func()
}

func (s *shop) deduct(ctx context.Context) error {
	return s.locks.Mutex("stock").Do(ctx, func(ctx context.Context) error {
		left := s.stock - 1
		if s.beforeWrite != nil {
			s.beforeWrite()
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		s.stock = left
		return nil
	})
}

func TestDeduct(t *testing.T) {
	locks, err := distlock.New(memlock.New(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer locks.Close()
	shop := &shop{locks: locks, stock: 1}
	if err := shop.deduct(t.Context()); err != nil || shop.stock != 0 {
		t.Errorf("stock %d, %v", shop.stock, err)
	}
}

func TestDeductStopsWhenTheLockIsLost(t *testing.T) {
	fake := distlocktest.New(t)
	shop := &shop{locks: fake.Client, stock: 1}
	shop.beforeWrite = func() { fake.Lose("stock") }
	if err := shop.deduct(t.Context()); !errors.Is(err, distlock.ErrLost) || shop.stock != 1 {
		t.Errorf("stock %d, %v; want no write, and ErrLost", shop.stock, err)
	}
}

func TestDeductWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := distlocktest.New(t)
		shop := &shop{locks: fake.Client, stock: 1}
		time.AfterFunc(time.Hour, fake.Hold("stock")) // another client releases it after an hour
		if err := shop.deduct(t.Context()); err != nil || shop.stock != 0 {
			t.Errorf("stock %d, %v", shop.stock, err)
		}
	})
}

func TestDeductGivesUpInAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := distlocktest.New(t)
		fake.Down()
		defer fake.Up()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		shop := &shop{locks: fake.Client, stock: 1}
		if err := shop.deduct(ctx); !errors.Is(err, distlock.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v; want both errors", err)
		}
	})
}

func TestTwoProcesses(t *testing.T) {
	store := memlock.NewStore()
	a, b := connect(t, store), connect(t, store) // each is a process of its own to the other
	lease, err := a.Mutex("stock").Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Mutex("stock").TryLock(t.Context()); !errors.Is(err, distlock.ErrHeld) {
		t.Errorf("got %v; want ErrHeld", err)
	}
	if err := lease.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
}
