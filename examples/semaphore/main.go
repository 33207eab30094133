// Semaphore calls an API that allows three calls at a time, over all hosts. The permit of a host that dies is free after its TTL.
package main

import (
	"cmp"
	"context"
	"log"
	"net/http"
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
		if err := permits.Do(ctx, request); err != nil && ctx.Err() == nil {
			log.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func request(ctx context.Context) error {
	r, _ := http.NewRequestWithContext(ctx, "GET", cmp.Or(os.Getenv("API_URL"), "http://localhost:8080"), nil)
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	return answer.Body.Close()
}
