package redislock_test

import (
	"context"
	"fmt"
	"log"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/backend/redislock"
	"github.com/redis/go-redis/v9"
)

func report(context.Context, uint64) error { return nil }

// A program that has a client already brings it along.
func ExampleNewGoRedis() {
	if err := run(context.Background(), "localhost:6379"); err != nil {
		log.Print(err)
	}
}

func run(ctx context.Context, addr string) error {
	client := redis.NewClient(&redis.Options{Addr: addr})
	defer client.Close()
	backend, err := redislock.NewGoRedis(client, nil)
	if err != nil {
		return fmt.Errorf("locks: %w", err)
	}
	locks, err := distlock.New(backend, nil)
	if err != nil {
		return err
	}
	defer locks.Close()

	// Was: mutex := redsync.New(pool).NewMutex("job"); mutex.Lock(); defer mutex.Unlock()
	err = locks.Mutex("job").Do(ctx, func(ctx context.Context) error {
		return report(ctx, distlock.Fence(ctx)) // ctx ends in time if the lock is lost
	})
	return err
}
