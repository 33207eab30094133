package shard_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/backend/shard"
)

func Example() {
	ctx := context.Background()
	b, err := shard.New([]shard.Member{
		{Name: "a", Backend: memlock.New()}, // in earnest: redislock, etcdlock, a quorum, …
		{Name: "b", Backend: memlock.New()},
		{Name: "c", Backend: memlock.New()},
	})
	if err != nil {
		log.Fatal(err)
	}
	locks, err := distlock.New(b, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close()
	err = locks.Mutex("order:42").Do(ctx, func(ctx context.Context) error {
		fmt.Println("at work")
		return nil
	})
	fmt.Println(err)
	// Output:
	// at work
	// <nil>
}

func ExampleRouter() {
	ctx := context.Background()
	owner, err := shard.NewRouter("web-0", "web-0", "web-1", "web-2") // this instance, and all
	if err != nil {
		log.Fatal(err)
	}
	for _, key := range []string{"order:2", "order:1"} {
		err := owner.Do(ctx, key, func(ctx context.Context) error {
			fmt.Println(key, "is handled here, one request at a time")
			return nil
		})
		if errors.Is(err, shard.ErrElsewhere) {
			fmt.Println(key, "is passed on to", owner.Of(key))
		}
	}
	// Output:
	// order:2 is passed on to web-1
	// order:1 is handled here, one request at a time
}
