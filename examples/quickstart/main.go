// Quickstart is the example of the README: two goroutines, or two processes, deduct from one stock and
// never sell the last item twice.
package main

import (
	"cmp"
	"context"
	"fmt"
	"log"
	"os"

	"github.com/distlock/distlock"
	_ "github.com/distlock/distlock/backend/all" // or the one backend that you use, which compiles faster
)

func main() {
	if err := run(context.Background(), cmp.Or(os.Getenv("DISTLOCK_URL"), "sqlite:/tmp/quickstart-locks.db")); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, url string) error {
	locks, err := distlock.Open(ctx, url, nil) // or redis://localhost:6379?prefix=locks:
	if err != nil {
		return err
	}
	defer locks.Close()

	return locks.Mutex("order:555").Do(ctx, func(ctx context.Context) error {
		// ctx ends, with cause distlock.ErrLost, before another process can hold the lock.
		return deduct(ctx, "sku-1", distlock.Fence(ctx))
	})
}

func deduct(_ context.Context, sku string, fence uint64) error {
	fmt.Printf("deducted one %s under fence %d\n", sku, fence)
	return nil
}
