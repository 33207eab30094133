// Package shard spreads locks over several coordinators. Each has a part of the names: there
// are more locks per second than one coordinator could do, and one that fails takes only its
// own locks with it. The members are backends of any kind, also quorums.
//
//	b, err := shard.Open(ctx, "shard:?member=a=redis%3A%2F%2Fr1%3A6379&member=b=redis%3A%2F%2Fr2%3A6379&member=c=…")
//	b, err := shard.New(ctx, []shard.Member{{Name: "a", Backend: one}, {Name: "b", Backend: two}, …}, nil)
//
// A lock's name alone chooses its member, by rendezvous hashing of the members' names. So
// addresses may change, but names must not. A new member takes an equal part of the locks
// from all others, and no other lock moves.
//
// [Router] does the same for requests: it routes a key to one instance of a program.
//
// # URL
//
//	shard:?member=NAME=URL&member=NAME=URL&…   each NAME=URL %-encoded
//
// The parameters joining=NAME=URL and leaving=NAME=URL are for members that come or go, see
// [State]. group and record are described at [Options].
//
// # When the list of members changes
//
// Two processes with different lists would lock one name at two members. So each process
// registers its list at every member, as a shared lock with the name distlock:shard:GROUP,
// and then looks for registrations of other lists. It may work while it is registered at a
// majority of its list's members. It takes a lock only if these registrations and the one
// at the lock's own member outlive the lock. A process that finds another list removes its
// own registration, and returns ErrInvalid with both lists in the message.
//
// If the majorities of two lists always share a member, there is never a moment at which
// both work: of two processes that register at the shared member, the second sees the
// first. Lists that differ by one added or removed member have such majorities. TestModel
// checks every state of this. Lists that differ by more are refused wherever both reach one
// member. They don't notice each other only if each is cut off from all members that the
// other has reached.
//
// To change the list without a pause, deploy in two steps. In between a member is Joining or
// Leaving; different members may do both at once:
//
//  1. Deploy joining=d=URL. A process with this setting has both lists, so it is compatible
//     with processes that have the old one. It takes the locks that are to move at both
//     members, the old one first.
//  2. When no process has only the old list any more, deploy member=d=URL.
//
// A process that skips a step is refused until the processes with the other list have closed,
// or have been dead for Options.Record. It is also safe to stop everything and start it with
// another list: step 1 is not needed then.
//
// # Cost
//
//   - One shared lock for each process and member, renewed every tenth second or less often.
//     Locks cost nothing more, except that one with a longer TTL than any before takes
//     another round trip, in which all registrations are prolonged.
//   - A majority of the members must be reachable, or no lock is taken or renewed. With two
//     members none may fail; use three or more.
//   - During a change the moving locks cost two round trips, or three if fences have to be
//     raised, and their waiters poll.
//
// # What is not promised
//
//   - Fences of a name increase while it stays at its member. During a change they increase if
//     all members have Caps.Floor; otherwise there are none. A name that has moved continues
//     with the new member's counter. That is greater if both count by clocks that agree, as
//     Redis and the SQL backends do. It may be anything if not (etcd, ZooKeeper).
//   - A member that loses its memory loses the registrations with its locks. They are renewed when
//     their processes find out.
//   - A capability is available only if all members have it. Members whose holds live with
//     a session can be mixed with others only if their holds can have a TTL as well
//     (Caps.Fixed), as with etcd but not with ZooKeeper.
package shard
