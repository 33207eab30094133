// Semaphore calls an API that allows three calls at a time, over all hosts. The permit of a host that dies is free after its TTL.
package main

import (
	"cmp"
	"context"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/distlock/distlock"
	_ "github.com/distlock/distlock/backend/all" // or the one backend that you use
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	locks, err := distlock.Open(ctx, cmp.Or(os.Getenv("DISTLOCK_URL"), "redis://localhost:6379?prefix=locks:"), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close()
	permits := locks.Semaphore("api", 3, distlock.WaitAtMost(time.Minute))
	for ctx.Err() == nil {
		if err := permits.Do(ctx, request); err != nil {
			log.Print(err)
		}
	}
}

func request(ctx context.Context) error {
	log.Print("calling")
	defer log.Print("called")
	select {
	case <-time.After(100 * time.Millisecond): // the call, with ctx
	case <-ctx.Done():
	}
	return ctx.Err()
}
