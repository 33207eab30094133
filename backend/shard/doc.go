// Package shard spreads locks over several coordinators, each of which has a part of the
// names: more locks per second than one could do, and one that fails takes its own with it.
// The members are backends of any kind, also a quorum each.
//
//	b, err := shard.Open(ctx, "shard:?member=a=redis%3A%2F%2Fr1%3A6379&member=b=redis%3A%2F%2Fr2%3A6379&member=c=…")
//	b, err := shard.New(ctx, []shard.Member{{Name: "a", Backend: one}, {Name: "b", Backend: two}, …}, nil)
//
// A lock's name alone chooses its member, by rendezvous hashing of the members' names. So
// addresses may change; the names must not. A member more takes its part of the locks evenly
// from all others, and no other lock moves.
//
// [Owner] does the same for requests: it routes a key to one instance of a program.
//
// # URL
//
//	shard:?member=NAME=URL&member=NAME=URL&…   each NAME=URL %-encoded
//
// Parameters: joining=NAME=URL and leaving=NAME=URL, for members that come or go, as in
// [State]; group, record, as in [Options].
//
// # When the list of members changes
//
// Two processes with different lists would lock one name at two members. So each records
// its list at every member, as a shared lock by the name distlock:shard:GROUP, and looks
// then who else is there. It is let in, and stays so, while its record stands at a majority
// of its list's members; a lock is taken only if the record outlives it, and stands at the
// lock's own member too. Who finds a record of another list takes its own away and answers
// ErrInvalid, with both lists in the message.
//
// If the majorities of two lists always have a member in common, as those of lists that
// differ by one added or removed member have, there is never a moment at which both work: of
// two that entered the common member the second has seen the first. TestModel looks at every
// state of this. Lists that differ by more are refused just so wherever both reach one
// member; only if each is cut off from all that the other has reached they do not notice.
//
// To change the list without a pause, say in two steps that a member is Joining or
// Leaving, or both of different members:
//
//  1. Deploy joining=d=URL. A process with this has both lists, so it gets along with those
//     that have the old one, and takes what is to move at both members, the old one first.
//  2. When no process has the old list alone, deploy member=d=URL.
//
// Who skips a step is refused until the processes with the other list have gone, and have
// been gone for Options.Record if they did not close. Stopping everything and starting it
// with another list is safe as well: then step 1 is not needed.
//
// # What it costs
//
//   - One shared lock for each process and member, renewed every tenth second or seldomer. A lock costs
//     nothing more, but for one member's round trip if its TTL is longer than any before
//     (the records of all members are then prolonged).
//   - A majority of the members must be reachable, or no lock is taken or renewed. So of two
//     members none may fail; use three or more.
//   - During a change the moving locks cost two round trips, three if fences have to be
//     aligned, and their waiters poll.
//
// # What is not promised
//
//   - Fences of a name increase while it stays at its member, and during a change (where
//     all members have Caps.Floor, else there are none then). A name that moved goes on with
//     the new member's counter: greater if both count by clocks that agree, as Redis and the
//     SQL backends do, anything if not (etcd, ZooKeeper).
//   - A member that loses its memory loses its records with its locks. They are made anew when
//     their owners find out.
//   - Locks of several names are taken in one step only if one member has them all.
//   - If members of one kind have what others lack, all lack it. Holds that live with a
//     session can be mixed with others only if they can have a TTL (Caps.Fixed), as with etcd
//     and not with ZooKeeper.
package shard
