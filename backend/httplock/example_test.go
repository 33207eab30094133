package httplock_test

import (
	"context"
	"log"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/backend/httplock"
)

func report(context.Context, uint64) error { return nil }

// Two servers before one backend: either may be restarted at any time.
func ExampleOpen() {
	if err := run(context.Background(), "https://locks1:7077,locks2:7077/?password_file=/run/secrets/distlock"); err != nil {
		log.Print(err)
	}
}

func run(ctx context.Context, url string) error {
	backend, err := httplock.Open(ctx, url)
	if err != nil {
		return err
	}
	locks, err := distlock.New(backend, nil)
	if err != nil {
		return err
	}
	defer locks.Close()
	return locks.Mutex("report").Do(ctx, func(ctx context.Context) error {
		return report(ctx, distlock.Fence(ctx)) // ctx ends in time if the lock is lost
	})
}
