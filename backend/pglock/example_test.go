package pglock_test

import (
	"context"
	"fmt"
	"log"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/backend/pglock"
	"github.com/jackc/pgx/v5/pgxpool"
)

func bill(context.Context, uint64) error { return nil }

// A program can use the pool that it already has.
func ExampleNewPool() {
	if err := run(context.Background(), "postgres://app:secret@db1:5432/app"); err != nil {
		log.Print(err)
	}
}

func run(ctx context.Context, url string) error {
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return err
	}
	defer pool.Close() // distlock leaves it open
	backend, err := pglock.NewPool(ctx, pool, nil)
	if err != nil {
		return fmt.Errorf("locks: %w", err)
	}
	locks, err := distlock.New(backend, nil)
	if err != nil {
		return err
	}
	defer locks.Close()

	// Was: SELECT pg_advisory_lock(hashtext('bill')), and the same connection to the end
	return locks.Mutex("bill").Do(ctx, func(ctx context.Context) error {
		return bill(ctx, distlock.Fence(ctx)) // ctx ends in time if the lock is lost
	})
}
