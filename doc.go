// Package distlock gives the programs of a fleet one lock over the coordinator that
// they already run.
//
//	locks, err := distlock.Open(ctx, "redis://localhost:6379?prefix=locks:", nil) // import _ ".../backend/redislock"
//	defer locks.Close()
//
//	err = locks.Mutex("order:555").Do(ctx, func(ctx context.Context) error {
//		// ctx ends, with cause distlock.ErrLost, before the lock can belong to someone else
//		return stock.Deduct(ctx, sku, distlock.Fence(ctx))
//	})
//
// A [Mutex], [RWMutex] or [Semaphore] is a name with options; holding it is a
// [Lease]. [Multi] takes several as one. Lock waits, TryLock does not, and how long
// to wait is the context's deadline and nothing else.
//
// # What is promised
//
// A lease ends in one of two ways. Unlock ends it. Or it is lost: its backend says
// so, or it could not be renewed until its deadline, which is counted from before
// the last successful request and lies a margin before the backend's TTL. Either
// way the lease's context ends, with the reason as its cause, before the backend
// gives the lock to another.
//
// Every lease has a fence, a number greater than those of all leases before it.
// Only a holder releases its lock. A process that dies loses its locks when their
// TTL is over. A wait is woken by the release where the coordinator can push, and
// in any case bounded. An answer that was lost counts as unknown: the same request
// is repeated, or what it may have taken is released.
//
// # What is not
//
// No lock can stop a program that is paused, in the middle of a write, for longer
// than its TTL: its context ends in time and the program does not see it. Whoever
// must be safe from that gives the fence to what it writes to, with the first read
// or before, and has smaller fences refused there.
//
// What a coordinator forgets it can't protect: a Redis that loses its memory gives
// a held lock away. Fences go on increasing even then. docs/guarantees.md has the
// whole table, backend by failure.
//
// # Many goroutines
//
// However many goroutines of a process want one lock, one of them talks to the
// backend. A lock that is released while others of the process wait is handed on to
// the next, first come first served, under the next of the fences that the grant
// reserved, for the price of a channel send. That is bounded by count and by time
// ([Options]), then the lock goes back to where other processes wait. All leases of
// a client are renewed by one timer, in batches.
package distlock
