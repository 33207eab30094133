// Package migrating has the code of docs/migrating.md. Each version of a program, before its move to
// distlock and after it, runs here beside the other one.
package migrating

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/distlock/distlock"
	_ "github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

func openMemory(t *testing.T) *distlock.Client {
	locks := must.Get(distlock.Open(t.Context(), "mem:", nil))(t)
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
	expect.OK(t, afterShedLock(t.Context(), locks, func(context.Context) error { return errors.New("ran twice") }))
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

func TestMain(m *testing.M) { os.Exit(testserver.Run(m)) }

// version is a program that does some work under the lock "job".
type version func(ctx context.Context, work func(context.Context) error) error

// exclude checks that neither version works while the other one does, so that both may run during
// the move.
func exclude(t *testing.T, before, after version) {
	t.Helper()
	for order, v := range map[string][2]version{"after waits": {before, after}, "before waits": {after, before}} {
		t.Run(order, func(t *testing.T) {
			worked := 0
			work := func(context.Context) error { worked++; return nil }
			err := v[0](t.Context(), func(context.Context) error {
				impatient, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
				defer cancel()
				if err := v[1](impatient, work); err == nil || worked > 0 {
					t.Errorf("the other version worked %d times, %v", worked, err)
				}
				return nil
			})
			expect.OK(t, err)
			if err := v[1](t.Context(), work); err != nil || worked != 1 {
				t.Errorf("after the release: worked %d times, %v", worked, err)
			}
		})
	}
}
