// Package fence checks fencing tokens where the protected data lives, so that a holder
// that was paused for longer than its lease can do no harm when it goes on.
//
//	var guard fence.Memory
//
//	leave, err := guard.Enter(ctx, "stock:7", distlock.Fence(ctx))
//	if err != nil {
//		return err // matches fence.ErrStale if another has held the lock meanwhile
//	}
//	defer leave()
//	// read, compute, write
//
// The data may be elsewhere: packages fencesql, fenceredis and fencehttp do the same in a
// database, in Redis, and for what a server keeps.
//
// # The rule
//
// A guard remembers the greatest fence that was presented for a resource, and refuses
// smaller ones. Present the fence with the first read, or before it, and again with the
// write. A fence that comes with writes only is too late: the paused holder's write may
// arrive after its successor has read and before it writes, is let in, and is
// overwritten. That is a lost update.
//
// The guard must live as long as the data. One that forgets what it has seen lets in what
// it had refused, so keep it where the data is: in one database, in one process.
//
// A token is no more durable than the counter it comes from. If the lock's coordinator
// goes back to smaller fences (another coordinator, or one that lost its counter), the
// guard refuses the rightful holder until the fences have caught up. That is safe, and
// stands still; whoever knows that nobody is left with an old fence may delete what the
// guard has stored.
//
// # Which fences
//
// One resource belongs to one lock. Fences of different locks are not compared: who works
// under several gives each resource that of its own lock (distlock.FenceOf). Guards are for
// those who hold alone: a Mutex, or an RWMutex that is held for writing. Holders of permits,
// and readers, hold at the same time under different fences, and a guard would refuse
// all but the youngest.
//
// An equal fence is the same holder again and is let in.
//
// # Why it does not import distlock
//
// A fence is a number. The service that keeps the data needs no lock and no coordinator,
// so this package and those below take a uint64, and import neither distlock nor any
// client of a database: distlock.Fence is passed in where the lock is held.
package fence
