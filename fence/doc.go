// Package fence checks fencing tokens where the protected data is, so that a holder that was
// paused for longer than its lease can do no harm when it continues.
//
//	var guard fence.Memory
//
//	leave, err := guard.Enter(ctx, "stock:7", distlock.Fence(ctx))
//	if err != nil {
//		return err // matches fence.ErrStale if another client has held the lock since
//	}
//	defer leave()
//	// read, compute, write
//
// Packages fencesql, fenceredis and fencehttp do the same in a database, in Redis and in an HTTP
// server.
//
// # The rule
//
// A guard remembers the greatest fence that was presented for a resource, and refuses smaller ones.
// To be protected, present the fence with or before the first read, and again with the write. A
// fence with the writes only is too late: the paused holder's write may arrive after its successor
// has read and before it writes. Then it is accepted and overwritten: a lost update.
//
// The guard must live as long as the data. A guard that forgets a fence accepts what it had refused.
// So keep it where the data is: in one database, or in one process.
//
// A guard relies on increasing fences. If the lock's coordinator goes back to smaller ones (another
// coordinator, or one that lost its counter), the guard refuses the rightful holder until the fences
// have caught up. That is safe, but blocks. If no holder with an old fence is left, the guard's
// stored fence may be deleted.
//
// # Which fences
//
// One resource belongs to one lock. Fences of different locks are not comparable: under several
// locks, give each resource the fence of its own lock (distlock.FenceOf). Guards are for exclusive
// holders: of a Mutex, or of an RWMutex in write mode. Permit holders and readers hold at the same
// time under different fences, and a guard would refuse all but the latest.
//
// An equal fence is the same holder again and is accepted.
//
// # Why it does not import distlock
//
// A fence is a number. The service that keeps the data needs no lock and no coordinator. So this
// package and those below it take a uint64, and import neither distlock nor a database client. The
// holder of the lock passes distlock.Fence.
package fence
