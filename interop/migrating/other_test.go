package migrating

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/distlock/distlock"
	_ "github.com/distlock/distlock/backend/memlock"
)

func openMemory(t *testing.T) *distlock.Client {
	locks, err := distlock.Open(t.Context(), "mem:", nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { locks.Close() })
	return locks
}

func afterRueidislock(ctx context.Context, locks *distlock.Client, work func(context.Context) error) error {
	lease, err := locks.Mutex("job").Lock(ctx)
	if err != nil {
		return err
	}
	defer lease.Unlock(ctx)
	return work(lease.Context()) // as theirs, it ends when the lock is lost
}

func afterCurator(ctx context.Context, locks *distlock.Client, work func(context.Context) error) error {
	return locks.Mutex("orders/555").Do(ctx, work) // the node /orders/555 below the chroot of the URL
}

func afterShedLock(ctx context.Context, locks *distlock.Client, report func(context.Context) error) error {
	job := locks.Mutex("cron:report",
		distlock.MaxHold(10*time.Minute), // lockAtMostFor
		distlock.MinHold(time.Minute),    // lockAtLeastFor
	)
	_, err := job.TryDo(ctx, report)
	return err
}

func afterLeaderElection(ctx context.Context, locks *distlock.Client, run func(context.Context) error) error {
	election := locks.Election("scheduler",
		distlock.WithTTL(15*time.Second), // LeaseDuration
		distlock.WithMeta(map[string]string{"identity": "pod-1"}),
	)
	return election.Lead(ctx, func(term context.Context) error {
		return run(term) // OnStartedLeading; when it returns, OnStoppedLeading
	})
}

func TestAfter(t *testing.T) {
	locks := openMemory(t)
	for name, run := range map[string]func(context.Context, *distlock.Client, func(context.Context) error) error{
		"rueidislock": afterRueidislock, "Curator": afterCurator, "ShedLock": afterShedLock,
	} {
		worked := 0
		err := run(t.Context(), locks, func(ctx context.Context) error { worked++; return context.Cause(ctx) })
		if err != nil || worked != 1 {
			t.Errorf("%s: worked %d times, %v", name, worked, err)
		}
	}
	if err := afterShedLock(t.Context(), locks, func(context.Context) error { return errors.New("ran twice") }); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	led := 0
	err := afterLeaderElection(ctx, locks, func(term context.Context) error {
		led++
		cancel()
		<-term.Done()
		return nil
	})
	if !errors.Is(err, context.Canceled) || led != 1 {
		t.Errorf("led %d times, %v", led, err)
	}
}
