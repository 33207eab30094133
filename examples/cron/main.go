// Cron is a program that runs on every host. At each tick of the schedule one of them makes the report, once, although
// their clocks differ; when that host is gone, another one does.
package main

import (
	"context"
	"errors"
	"flag"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/distlock/distlock"
	_ "github.com/distlock/distlock/backend/all"
)

func main() {
	url := flag.String("url", "redis://localhost:6379?prefix=locks:", "where the locks are")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := follow(ctx, *url, time.Minute, report); err != nil {
		log.Fatal(err)
	}
}

// follow starts the job at each tick until ctx ends.
func follow(ctx context.Context, url string, every time.Duration, job func(context.Context) error) (err error) {
	locks, err := distlock.Open(ctx, url, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, locks.Close()) }()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Until(time.Now().Truncate(every).Add(every))):
		}
		if ran, err := locks.Cron(ctx, "report", every, job); err != nil {
			log.Printf("report: ran here: %v, %v", ran, err)
		}
	}
}

func report(ctx context.Context) error {
	log.Printf("making the report, under fence %d", distlock.Fence(ctx))
	return ctx.Err() // which ends if the lock is lost
}
