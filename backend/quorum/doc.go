// Package quorum makes one lock from several independent coordinators: it is held by the Owner
// that holds at a majority of them. It is Redlock with the fencing token that its critics missed,
// and works with any backends. Five Redis masters without replicas are usual.
//
//	b, err := quorum.Open(ctx, "quorum+redis://user:password@r1:6379,r2:6379,r3:6379/0")
//	b, err := quorum.New([]driver.Backend{one, two, three}, nil)
//
// # URL
//
//	quorum+redis://[user[:password]@]host[:6379],host,…[/db]   one member for each host
//	quorum+rediss://…                                          … over TLS
//	quorum:?member=URL&member=URL&…                            any members, %-encoded
//
// The parameter member_timeout is described at [Options]; all others are the members' own. Open needs a majority, and members that are down join later. A member that
// can never join, for a wrong password say, makes Open fail.
//
// # How it works
//
//  1. The votes of all members are requested at once, each with a short timeout. They are to hold
//     for the TTL, and a hundredth of it and 2 ms more, since their clocks may run faster than the
//     caller's by as much. A certain decision does not wait for the rest.
//  2. When a majority has granted, the fence is the greatest that one of them gave. Members
//     whose counter is below it, or below the end of the span reserved for hand-off, raise it
//     in a renewal, which only the owner can make. Once a majority has done so, the lock is
//     held. Any two majorities share a member, and the earlier holder had raised its counter
//     there while it held: so the later fence is greater.
//  3. The lock is trusted for the TTL, counted from before step 1.
//  4. Releases, also of failed attempts, go to all members. Members that do not answer are
//     retried until they do or the TTL has passed.
//  5. A renewal needs a majority. If a live hold is missing at a member twice in a row, because
//     the member was down, it is requested there again.
//
// Attempts that split the vote resolve it themselves: the favourite keeps its votes for a
// moment, and the others release theirs. If votes of finished attempts remain, all attempts may
// be refused, and are retried a moment later. There are no queues, since each member could
// have another order: so there is no FIFO between processes. All locks are exclusive: there are no
// read/write locks and no semaphores. For these use one coordinator that is replicated.
//
// Steps 1, 3 and 4 are https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/
// by Salvatore Sanfilippo. Step 2 answers Martin Kleppmann's critique, that Redlock has
// no fencing token: https://martin.kleppmann.com/2016/02/08/how-to-do-distributed-locking.html.
// TestModel checks every state of a small model of the protocol, and finds a violation for each
// part that is left out.
//
// # What is promised
//
// With any minority of the members dead, cut off or slow there is at most one holder, fences
// increase, and the lock can be taken, renewed and released at the pace of the other members.
// Without a majority no lock is granted, and holders lose theirs in time, with their context
// cancelled.
//
// # What is not promised
//
//   - A member that restarts without its memory while locks live has forgotten its votes: two
//     holders are possible. Let it persist every write (appendfsync always), or restart it
//     only after the longest TTL has passed. Fences still increase if members count from a
//     clock, as redislock does.
//   - A member whose wall clock jumps forward expires holds too early, with the same result.
//   - Members must be independent. Two addresses of one server are refused, if members say which
//     server they are, as Redis does; of two others they are two votes. Replicas and
//     failover behind a member are like a restart without the latest writes.
//   - A holder may pause, as with any lock: pass the fence to the storage.
//   - A force unlock by another process may reach a slow member before the owner's request does.
//     The vote that the member then gives stays until the next renewal finds that the lock is
//     lost, or for the TTL.
//   - While members do not answer, Inspect and List also report possible holders. They report
//     no fences.
package quorum
