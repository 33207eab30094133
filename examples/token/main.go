// Token refreshes an access token that all hosts share, and whose refresh voids the one before: one host refreshes, the others
// look again once they have the lock, and use the new one.
package main

import (
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
	refused := load()
	err = locks.Mutex("token:their-service").Do(ctx, func(context.Context) error {
		if now := load(); now != refused {
			log.Printf("another host has refreshed it: %s", now)
			return nil
		}
		log.Print("refreshing")
		return save(refused + "+")
	})
	log.Print("done: ", err)
}

// load and save stand for the store that all hosts share.
func load() string {
	token, _ := os.ReadFile(os.Getenv("TOKEN_FILE"))
	return string(token)
}

func save(token string) error {
	return os.WriteFile(os.Getenv("TOKEN_FILE"), []byte(token), 0o600)
}
