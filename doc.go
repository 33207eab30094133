// Package distlock gives the programs of a fleet one lock over the coordinator that
// they already run.
//
//	locks, err := distlock.Open(ctx, "redis://localhost:6379?prefix=locks:", nil) // import _ ".../backend/redislock"
//	defer locks.Close()
//
//	err = locks.Mutex("order:555").Do(ctx, func(ctx context.Context) error {
//		// ctx ends, with cause distlock.ErrLost, before another process can hold the lock
//		return stock.Deduct(ctx, sku, distlock.Fence(ctx))
//	})
//
// A [Mutex], [RWMutex] or [Semaphore] is a name with options; holding it is a
// [Lease]. [Multi] takes several as one. Lock waits, TryLock does not. The context's
// deadline bounds the wait, or [WaitAtMost] does. An [Election] is a mutex that is
// held for as long as possible.
//
// # What is promised
//
// A lease ends by Unlock, or it is lost: its backend says so, or it could not be renewed until its
// deadline. The deadline is counted from before the last successful request, and lies a margin before
// the end of the backend's TTL: the lease's context ends then, with the reason as its cause, before the
// backend grants the lock to another Owner. If the backend has dropped the hold earlier, as after an unlock
// by force, the context ends when the client learns of it.
//
// Every lease has a fence, a number greater than the fence of any earlier lease.
// Only a holder releases its lock. A process that dies loses its locks when their
// TTL is over. Where the coordinator can push, the release wakes a waiter; elsewhere a waiter polls. If
// an answer is lost, the outcome is unknown: the same request is repeated, or what it may have taken is
// released.
//
// # What is not
//
// No lock can stop a program that is paused for longer than its TTL in the middle of a write: its
// context ends in time, but the program does not see it. To be protected against that, pass the fence
// to the storage with, or before, the first read, and let it reject smaller fences.
//
// A coordinator that forgets can't protect: a Redis that loses its memory grants a held lock again.
// Fences go on increasing even then. docs/guarantees.md has the whole table, backend by failure.
//
// # Many goroutines
//
// However many goroutines of a process want one lock, one of them talks to the backend. A lock that
// is released while others of the process wait is handed off to the next one, first come first served,
// under the next of the fences that the grant reserved, for the price of a channel send. That is bounded
// by count and by time ([Options]); then the lock is released to the backend, where other processes
// wait. All leases of a client are renewed by one timer, in batches.
package distlock
