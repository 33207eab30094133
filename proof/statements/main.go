// The command statements locks and unlocks a free lock once, at the backend of the URL that it is given, and writes which
// statements ran into a folder. It is built with -cover; the test beside it counts them.
package main

import (
	"context"
	"errors"
	"log"
	"os"
	"runtime/coverage"
	"time"

	"github.com/distlock/distlock"
	_ "github.com/distlock/distlock/backend/all"
)

// warmup is how many pairs come first: connections are open then, and scripts and statements known.
const warmup = 50

func main() {
	if err := run(context.Background(), os.Args[1], os.Args[2]); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, url, dir string) (err error) {
	locks, err := distlock.Open(ctx, url, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, locks.Close()) }()
	mutex := locks.Mutex("statements")
	for range warmup {
		if err := pair(ctx, mutex); err != nil {
			return err
		}
	}
	time.Sleep(100 * time.Millisecond) // goroutines finish what the pairs before left to them
	if err := coverage.ClearCounters(); err != nil {
		return err
	}
	if err := pair(ctx, mutex); err != nil {
		return err
	}
	return errors.Join(coverage.WriteMetaDir(dir), coverage.WriteCountersDir(dir))
}

func pair(ctx context.Context, mutex *distlock.Mutex) error {
	lease, err := mutex.Lock(ctx)
	if err != nil {
		return err
	}
	return lease.Unlock(ctx)
}
