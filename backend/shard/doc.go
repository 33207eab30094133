// Package shard spreads locks over several coordinators. Each has a part of the names: there
// are more locks per second than one coordinator could do, and one that fails takes only its
// own locks with it. The members are backends of any kind, also quorums.
//
//	b, err := shard.Open(ctx, "shard:?member=a=redis%3A%2F%2Fr1%3A6379&member=b=redis%3A%2F%2Fr2%3A6379&member=c=…")
//	b, err := shard.New([]shard.Member{{Name: "a", Backend: one}, {Name: "b", Backend: two}, …})
//
// A lock's name alone chooses its member, by rendezvous hashing of the members' names. So
// addresses may change, but names must not.
//
// [Router] does the same for requests: it routes a key to one instance of a program.
//
// # URL
//
//	shard:?member=NAME=URL&member=NAME=URL&…   each NAME=URL %-encoded
//
// There are no other parameters. Open needs a majority of the members, and the others join later.
//
// # The list of members is fixed
//
// Two processes with different lists of names lock one name at two members: both hold it. Nothing
// notices that. So every process has the same list, and all of them are stopped before it changes.
// Where servers have to come and go while locks are in use, use Redis Cluster, which moves
// them: redis+cluster://.
//
// # What is not promised
//
//   - After the list was changed, the fences of a name that has moved continue with the new member's
//     counter. It is greater if both count by clocks that agree, as Redis and the SQL backends do. It
//     may be anything if not (etcd, ZooKeeper).
//   - A capability is available only if all members have it. Members whose holds live with
//     a session, as with ZooKeeper, can't be mixed with others.
package shard
