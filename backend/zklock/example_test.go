package zklock_test

import (
	"context"
	"fmt"
	"log"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/backend/zklock"
)

func report(context.Context, uint64) error { return nil }

// A Java service shares this lock by an InterProcessMutex on /job and a client with the chroot in
// its connect string.
func ExampleOpen() {
	if err := run(context.Background(), "zk://localhost:2181/app"); err != nil {
		log.Print(err)
	}
}

func run(ctx context.Context, url string) error {
	backend, err := zklock.Open(ctx, url)
	if err != nil {
		return fmt.Errorf("locks: %w", err)
	}
	locks, err := distlock.New(backend, nil)
	if err != nil {
		return err
	}
	defer locks.Close()

	// Was: lock := zk.NewLock(conn, "/job", zk.WorldACL(zk.PermAll)); lock.Lock(); defer lock.Unlock()
	return locks.Mutex("job").Do(ctx, func(ctx context.Context) error {
		return report(ctx, distlock.Fence(ctx)) // ctx ends in time if the lock is lost
	})
}

// A revocable holder stops at a safe point and releases the lock.
func ExampleOpen_revocable() {
	if err := runRevocable(context.Background(), "zk://localhost:2181/app"); err != nil {
		log.Print(err)
	}
}

func runRevocable(ctx context.Context, url string) error {
	backend, err := zklock.Open(ctx, url)
	if err != nil {
		return err
	}
	locks, err := distlock.New(backend, nil)
	if err != nil {
		return err
	}
	defer locks.Close()

	revoked := make(chan struct{})
	job := locks.Mutex("job", distlock.Revocable(func(*distlock.Lease) { close(revoked) }))
	return job.Do(ctx, func(ctx context.Context) error {
		for part := range uint64(1000) {
			select {
			case <-revoked: // by Client.Revoke, distlock unlock --ask, or Curator's Revoker
				return nil
			default:
			}
			if err := report(ctx, part); err != nil {
				return err
			}
		}
		return nil
	})
}
