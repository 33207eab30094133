package etcdlock_test

import (
	"context"
	"fmt"
	"log"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/backend/etcdlock"
	clientv3 "go.etcd.io/etcd/client/v3"
)

func report(context.Context, uint64) error { return nil }

// A program can use a client that it has already.
func ExampleNew() {
	if err := run(context.Background(), "localhost:2379"); err != nil {
		log.Print(err)
	}
}

func run(ctx context.Context, addr string) error {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{addr}})
	if err != nil {
		return err
	}
	defer client.Close() // distlock leaves it open
	backend, err := etcdlock.New(client, nil)
	if err != nil {
		return fmt.Errorf("locks: %w", err)
	}
	locks, err := distlock.New(backend, nil)
	if err != nil {
		return err
	}
	defer locks.Close()

	// Was: session, err := concurrency.NewSession(client); mutex := concurrency.NewMutex(session, "job"); mutex.Lock(ctx)
	err = locks.Mutex("job").Do(ctx, func(ctx context.Context) error {
		return report(ctx, distlock.Fence(ctx)) // ctx ends in time if the lock is lost
	})
	return err
}
