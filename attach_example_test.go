package distlock_test

import (
	"context"
	"fmt"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/backend/memlock"
)

// One process takes the lock, and another one releases it.
func passOn(ctx context.Context, worker, finisher *distlock.Client) error {
	taken, err := worker.Mutex("upload:7").Lock(ctx)
	if err != nil {
		return err
	}
	owner, err := taken.Detach(ctx) // no longer renewed here
	if err != nil {
		return err
	}
	lease, err := finisher.Attach(ctx, "upload:7", owner) // in another process
	if err != nil {
		return err
	}
	return lease.Unlock(ctx)
}

func ExampleClient_Attach() {
	store := memlock.NewStore()
	worker, _ := distlock.New(store.Connect(), nil)
	defer worker.Close()
	finisher, _ := distlock.New(store.Connect(), nil)
	defer finisher.Close()
	fmt.Println(passOn(context.Background(), worker, finisher))
	// Output: <nil>
}
