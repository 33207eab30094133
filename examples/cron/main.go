// Cron runs on every host. At each tick one of them makes the report, once, although their clocks differ.
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
	every, err := time.ParseDuration(cmp.Or(os.Getenv("EVERY"), "1m"))
	if err != nil {
		log.Fatal(err)
	}
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-time.After(time.Until(time.Now().Truncate(every).Add(every))):
		}
		if _, err := locks.Cron(ctx, "report", every, report); err != nil && ctx.Err() == nil {
			log.Print(err) // the next tick is another try
		}
	}
}

func report(ctx context.Context) error {
	log.Printf("making the report, under fence %d", distlock.Fence(ctx))
	return ctx.Err() // which ends if the lock is lost
}
