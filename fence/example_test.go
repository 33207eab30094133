package fence_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/fence"
)

// A paused holder is refused when it continues.
func ExampleMemory() {
	ctx := context.Background()
	var guard fence.Memory
	stock := 100

	paused, successor := uint64(33), uint64(34) // distlock.Fence(ctx) of their leases
	read := 0
	_ = guard.Do(ctx, "stock:7", paused, func() error { read = stock; return nil })
	// … the first holder is paused here for longer than its lease …
	_ = guard.Do(ctx, "stock:7", successor, func() error { stock -= 10; return nil })
	err := guard.Do(ctx, "stock:7", paused, func() error { stock = read - 1; return nil })

	fmt.Println(stock, errors.Is(err, fence.ErrStale))
	fmt.Println(err)
	// Output:
	// 90 true
	// stale fence: 33 for "stock:7" after 34; another client has held the lock since
}

// The fence comes from the lease.
func ExampleMemory_Enter() {
	locks, err := distlock.New(memlock.New(), nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer locks.Close()
	var guard fence.Memory
	stock := 100
	err = locks.Mutex("stock:7").Do(context.Background(), func(ctx context.Context) error {
		leave, err := guard.Enter(ctx, "stock:7", distlock.Fence(ctx))
		if err != nil {
			return err
		}
		defer leave()
		stock-- // read and write, both inside
		return nil
	})
	fmt.Println(stock, err)
	// Output: 99 <nil>
}

// Your own guard compares, remembers and writes in one atomic step, by the store's own means.
func ExampleCheck() {
	stored := struct{ fence, value uint64 }{34, 90}
	write := func(f, value uint64) error {
		if err := fence.Check("stock:7", f, stored.fence); err != nil {
			return err
		}
		stored.fence, stored.value = f, value
		return nil
	}
	fmt.Println(write(33, 99) != nil, write(35, 89), stored)
	// Output: true <nil> {35 89}
}
