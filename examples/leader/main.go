// Leader runs on every host. One of them leads; when it stops, or is gone, another one does, and never before the first has been
// told to stop.
package main

import (
	"cmp"
	"context"
	"errors"
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
	election := locks.Election("leader:scheduler", distlock.WithTTL(10*time.Second))
	if err := election.Lead(ctx, lead); !errors.Is(err, context.Canceled) {
		log.Fatal(err)
	}
}

// lead is the work of one host at a time. When term ends, it returns: then another host may lead.
func lead(term context.Context) error {
	log.Printf("leading, under fence %d", distlock.Fence(term))
	<-term.Done()
	log.Printf("not leading any more: %v", context.Cause(term))
	return nil
}
