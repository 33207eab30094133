package distlock_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/backend/memlock"
)

// The examples run on the backend in memory. Others differ in one line.
func newClient() *distlock.Client {
	locks, err := distlock.New(memlock.New(), nil)
	if err != nil {
		panic(err)
	}
	return locks
}

func ExampleMutex_Do() {
	locks := newClient()
	defer locks.Close()
	stock := 1
	err := locks.Mutex("order:555").Do(context.Background(), func(ctx context.Context) error {
		// ctx ends, with cause distlock.ErrLost, before another process can hold the lock.
		stock--
		fmt.Println("fenced:", distlock.Fence(ctx) > 0)
		return nil
	})
	fmt.Println(stock, err)
	// Output:
	// fenced: true
	// 0 <nil>
}

// The context's deadline bounds the wait, not the lease.
func ExampleMutex_Lock() {
	locks := newClient()
	defer locks.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	lease, err := locks.Mutex("report").Lock(ctx)
	if err != nil {
		fmt.Println(err) // matches context.DeadlineExceeded and, say, distlock.ErrHeld
		return
	}
	defer lease.Unlock(ctx) // also releases if ctx has ended
	fmt.Println("held:", lease.Err() == nil)
	// Output: held: true
}

func ExampleMutex_TryLock() {
	locks := newClient()
	defer locks.Close()
	ctx := context.Background()
	lease, _ := locks.Mutex("cron").TryLock(ctx)
	defer lease.Unlock(ctx)

	_, err := locks.Mutex("cron").TryLock(ctx)
	if held := (*distlock.HeldError)(nil); errors.As(err, &held) {
		fmt.Println("busy:", held.Holders[0].Fence == lease.Fence())
	}
	// Output: busy: true
}

// All hosts start the job at the same time; one of them runs it. MinHold is longer than their clocks
// differ.
func ExampleMutex_TryDo() {
	locks := newClient()
	defer locks.Close()
	for range 3 {
		report := locks.Mutex("cron:report", distlock.MinHold(time.Minute))
		ran, err := report.TryDo(context.Background(), func(context.Context) error {
			return nil // … write the report …
		})
		fmt.Println(ran, err)
	}
	// Output:
	// true <nil>
	// false <nil>
	// false <nil>
}

// A leader publishes its address.
func ExampleElection_Lead() {
	locks := newClient()
	defer locks.Close()
	ctx, cancel := context.WithCancel(context.Background())
	election := locks.Election("scheduler", distlock.WithMeta(map[string]string{"address": "10.0.0.7:8080"}))
	err := election.Lead(ctx, func(term context.Context) error {
		// One process of the fleet is here. term ends before another one can be, and has the
		// number of the term for the storage: distlock.Fence(term).
		leader, _ := election.Leader(ctx)
		fmt.Println("leads at", leader.Meta["address"])
		cancel() // the program is asked to end
		<-term.Done()
		return nil
	})
	fmt.Println(errors.Is(err, context.Canceled))
	// Output:
	// leads at 10.0.0.7:8080
	// true
}

// A client of the leader follows it.
func ExampleElection_Leaders() {
	locks := newClient()
	defer locks.Close()
	for leader, err := range locks.Election("scheduler").Leaders(context.Background()) {
		switch {
		case errors.Is(err, distlock.ErrNoLeader):
			fmt.Println("no leader")
		case err != nil:
			fmt.Println("not known:", err)
		default:
			fmt.Println("connect to", leader.Meta["address"])
		}
		break // a program goes on until the context ends
	}
	// Output: no leader
}

// Many read at a time, in all processes, or one writes.
func ExampleRWMutex() {
	locks := newClient()
	defer locks.Close()
	ctx := context.Background()
	config := locks.RWMutex("config")
	_ = config.Do(ctx, func(ctx context.Context) error {
		fmt.Println("writes alone")
		return nil
	})
	_ = config.RDo(ctx, func(ctx context.Context) error {
		other, err := config.TryRLock(context.Background()) // of another caller
		fmt.Println("reads beside others:", err == nil)
		defer other.Unlock(ctx)
		_, err = config.TryLock(context.Background())
		fmt.Println("a writer waits:", errors.Is(err, distlock.ErrHeld))
		return nil
	})
	// Output:
	// writes alone
	// reads beside others: true
	// a writer waits: true
}

// What the leader publishes, any process reads without taking part.
func ExampleWithMeta() {
	store := memlock.NewStore() // of two processes
	candidate, _ := distlock.New(store.Connect(), nil)
	defer candidate.Close()
	caller, _ := distlock.New(store.Connect(), nil)
	defer caller.Close()

	ctx, stop := context.WithCancel(context.Background())
	address := distlock.WithMeta(map[string]string{"address": "10.0.0.7:8080"})
	_ = candidate.Election("scheduler", address).Lead(ctx, func(context.Context) error {
		leader, err := caller.Election("scheduler").Leader(ctx)
		fmt.Println("send requests to", leader.Meta["address"], err)
		stop()
		return nil
	})
	_, err := caller.Election("scheduler").Leader(context.Background())
	fmt.Println("nobody leads:", errors.Is(err, distlock.ErrNoLeader))
	// Output:
	// send requests to 10.0.0.7:8080 <nil>
	// nobody leads: true
}

// Many may read, one may write; a writer can become a reader without a gap.
func ExampleLease_Downgrade() {
	locks := newClient()
	defer locks.Close()
	ctx := context.Background()
	config := locks.RWMutex("config")
	lease, _ := config.Lock(ctx)
	// … write …
	fmt.Println(lease.Downgrade(ctx), lease.Mode())
	// … read what was written, beside other readers …
	_ = config.RDo(ctx, func(context.Context) error {
		fmt.Println("another reader")
		return nil
	})
	_ = lease.Unlock(ctx)
	// Output:
	// <nil> read
	// another reader
}

// Three at once may call the API; a permit of a process that dies comes back.
func ExampleSemaphore() {
	locks := newClient()
	defer locks.Close()
	ctx := context.Background()
	api := locks.Semaphore("api", 3)
	for range 3 {
		permit, _ := api.Acquire(ctx)
		defer permit.Unlock(ctx)
	}
	_, err := api.TryAcquire(ctx)
	fmt.Println(errors.Is(err, distlock.ErrHeld))
	// Output: true
}

// Several locks are always taken in the same order.
func ExampleMulti() {
	locks := newClient()
	defer locks.Close()
	transfer := distlock.Multi(locks.Mutex("account:9"), locks.Mutex("account:4"))
	_ = transfer.Do(context.Background(), func(ctx context.Context) error {
		fmt.Println(distlock.FenceOf(ctx, "account:4") > 0, distlock.FenceOf(ctx, "account:9") > 0)
		return nil
	})
	// Output: true true
}

// A lease whose Unlock was forgotten ends all the same.
func ExampleOptions_maxHold() {
	locks, err := distlock.New(memlock.New(), &distlock.Options{MaxHold: 50 * time.Millisecond})
	if err != nil {
		panic(err)
	}
	defer locks.Close()
	lease, _ := locks.Mutex("report").Lock(context.Background())
	<-lease.Context().Done()
	fmt.Println(context.Cause(lease.Context()))
	// Output: distlock: hold "report": lock lost: it was held for MaxHold
}

// Leases that were dropped without Unlock are reported after a garbage collection.
func ExampleObserver_leaked() {
	leaked := make(chan distlock.Event, 1)
	locks, err := distlock.New(memlock.New(), &distlock.Options{
		Observer: &distlock.Observer{Leaked: func(e distlock.Event) { leaked <- e }},
	})
	if err != nil {
		panic(err)
	}
	defer locks.Close()
	_, _ = locks.Mutex("report").Lock(context.Background())
	for len(leaked) == 0 {
		runtime.GC() // a program that runs for long does this by itself
	}
	e := <-leaked
	fmt.Println(e.Name, "was taken here:", strings.HasPrefix(e.Stack, "github.com/distlock/distlock_test.ExampleObserver_leaked"))
	// Output: report was taken here: true
}

func ExampleReentrant() {
	locks := newClient()
	defer locks.Close()
	m := locks.Mutex("tree", distlock.Reentrant())
	_ = m.Do(context.Background(), func(ctx context.Context) error {
		return m.Do(ctx, func(ctx context.Context) error { // the hold travels in ctx
			fmt.Println("inside twice")
			return nil
		})
	})
	// Output: inside twice
}

func ExampleClient_Inspect() {
	locks := newClient()
	defer locks.Close()
	ctx := context.Background()
	lease, _ := locks.Mutex("migrate", distlock.WithMeta(map[string]string{"version": "42"})).Lock(ctx)
	defer lease.Unlock(ctx)
	info, _ := locks.Inspect(ctx, "migrate")
	for _, h := range info.Holders {
		fmt.Println(h.Mode, h.Meta["version"], h.Left > 29*time.Second)
	}
	// Output: exclusive 42 true
}
