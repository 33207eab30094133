// Token refreshes an access token that all hosts share, and whose refresh voids the one before: one host refreshes, the others
// look again once they have the lock, and use the new one.
package main

import (
	"bytes"
	"cmp"
	"context"
	"log"
	"os"
	"os/signal"
	"syscall"

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
	file := os.Getenv("TOKEN_FILE") // stands for the store that all hosts share
	refused, err := os.ReadFile(file)
	if err != nil {
		log.Fatal(err)
	}
	err = locks.Mutex("token:their-service").Do(ctx, func(ctx context.Context) error {
		now, err := os.ReadFile(file)
		if err != nil || !bytes.Equal(now, refused) {
			return err // without one: another host has refreshed it
		}
		log.Print("refreshing")
		if ctx.Err() != nil {
			return context.Cause(ctx) // the lock is lost: another host may refresh it
		}
		return os.WriteFile(file, append(now, '+'), 0o600)
	})
	if err != nil {
		log.Fatal(err)
	}
	log.Print("done")
}
