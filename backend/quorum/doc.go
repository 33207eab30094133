// Package quorum makes one lock of several independent coordinators: whoever holds at a
// majority of them holds. It is Redlock, with what its critics missed, and works with
// any backends; five Redis masters without replicas are the usual ones.
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
// Parameters: member_timeout, drift, as in [Options]; all others are the members' own.
// Open needs a majority; members that are down join when they come. One that refuses for
// good, as a wrong password, is an error of Open.
//
// # How it works
//
//  1. All members are asked at once, for the TTL and a little more (the drift), each for
//     a short time only. A decision that is certain waits for nobody.
//  2. A majority has granted: the fence is the greatest that any of them gave. Members
//     whose counter is below it, or below the end of the span reserved for hand-off, are
//     told to raise it, as a renewal that only the owner can make. When a majority is
//     there, the lock is held. Any two majorities share a member, and the earlier holder
//     had raised that one while it was its own: so the later fence is greater.
//  3. The lock is trusted for the TTL from before step 1, and no longer.
//  4. Failed attempts and releases go to all members, to those that did not answer again
//     and again until they do or the TTL has passed.
//  5. Renewal needs a majority. A member that twice in a row knows nothing of a live
//     hold, since it was down, is asked for it anew.
//
// Attempts that split the vote settle it among themselves: the favourite keeps its votes
// for a moment, and the others give theirs back. Where votes are left of attempts that are
// over, all may be refused, to come again a moment later. Nobody can stand in line, since the
// line would have another order at each member; for the same reason there are no
// semaphores, and FIFO between processes is not on offer.
//
// Steps 1, 3 and 4 are https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/
// by Salvatore Sanfilippo. Step 2 answers Martin Kleppmann's critique, that Redlock has
// no fencing token: https://martin.kleppmann.com/2016/02/08/how-to-do-distributed-locking.html.
// TestModel looks at every state of a small model of the protocol, and finds what breaks
// if a part of it is left out.
//
// # What is promised
//
// With any minority of the members dead, cut off or slow there is at most one holder,
// fences increase, and the lock can be taken, renewed and released, at the pace of the
// members that are well. Without a majority nobody gets a lock, and who holds loses it in
// time, with its context cancelled.
//
// # What is not
//
//   - A member that restarts without its memory while locks live has forgotten its vote:
//     two holders are possible. Let it persist every write (appendfsync always), or
//     restart it later than the longest TTL after it went down. Fences still increase if
//     members count from a clock, as redislock does.
//   - A member whose wall clock jumps forward lets go too early, which is the same hole.
//   - Members must be independent. Two names of one server are two votes; replicas and
//     failover behind a member are a restart without the latest writes.
//   - A pause of the holder itself is as with any lock: show the fence to the storage.
//   - A release by another process than the one that was granted may come to a slow member
//     before that one's request does. The vote that the member then gives to nobody stays
//     until the next renewal finds that the lock is lost, or for the TTL.
//   - Inspect and List tell of who may hold while members do not answer, and of no fences.
package quorum
