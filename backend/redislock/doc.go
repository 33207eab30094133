// Package redislock keeps locks in Redis 6.0 or later, or Valkey: in one server, in the
// master that Sentinel names, or in a Cluster.
//
//	b, err := redislock.Open(ctx, "redis://user:password@localhost:6379/0")
//	b, err := redislock.NewGoRedis(client, nil)  // *redis.Client or *redis.ClusterClient
//	b, err := rueidislock.New(client, nil)       // rueidis.Client of any mode
//
// # URL
//
//	redis://[user[:password]@]host[:6379][/db]   TCP
//	redis+unix:///path/to/socket?db=0            a socket; user and password as above
//	redis+sentinel://[user[:password]@]host1[:26379],host2,…/master[/db]
//	                                             the hosts are sentinels
//	redis+cluster://[user[:password]@]host1[:6379],host2,…
//	                                             some servers of a cluster
//	rediss://… rediss+sentinel://… rediss+cluster://…
//	                                             the same with TLS
//
// Parameters: layout (string, redisson), prefix (put before every name), timeout (of
// connecting, and of one answer; default 5s; a later answer counts as lost), pubsub
// (see PubSub), replicas and replica_timeout (see
// Replicas), scripts (auto, off; see Without scripts). With Sentinel: sentinel_user and
// sentinel_password, if the sentinels want a login. With TLS: ca, a file of certificates
// to trust instead of the system's; cert and key, files with the client's own;
// sentinel_tls=false if the sentinels have none.
//
// # Sentinel
//
// The sentinels are asked for the master when a server does not answer or turns out
// to be a replica, once a second while there is traffic, and before the first request
// after a pause. So a master that was replaced, but can still be reached, grants
// locks for another second, and for as long as the answer takes. The sentinel that answers may
// itself learn of the replacement up to two seconds late, from the others. If no sentinel
// can be reached, the old master is used for as long as it answers: min-replicas-to-write
// bounds that. Clients given to NewGoRedis and rueidislock.New find the master in their own way.
//
// # Cluster
//
// All keys of a lock lie in the slot of its name, and so does its channel. The text
// between the first { and the next } decides the slot. A name, with its prefix, that
// has a brace but no such text, as "a{b", "a}b" or "{}", is ErrInvalid, and so is such
// a prefix. In the layout "string" each slot has a fence counter of its own,
// distlock:fence:{number}; a prefix with a part in braces puts all its locks into one
// slot, and has one counter. While a slot moves, a lock can't be acquired if only some of its
// keys have moved.
//
// # How a lock is stored
//
// In the layout "string", the default, an exclusive lock is a string, as SET name value NX PX ttl
// makes it. So distlock and other programs that lock in this way exclude each other. The value is
// "owner meta fence". A release deletes it if it begins with the Owner, and publishes 0
// on distlock_free:{name}.
//
// In the layout "redisson" an exclusive lock is an RLock and RFencedLock: the hash name
// with one field owner:1, the channel redisson_lock__channel:{name}, and the token in
// redisson_lock_token:{name}.
//
// The queue of an exclusive lock is a list, distlock_line:{name}. A sorted set,
// distlock_places:{name}, has the end of each waiter's ticket by the server's clock. In the layout
// "redisson" the list is RFairLock's redisson_lock_queue:{name}, and redisson_lock_timeout:{name}
// has the ends that Java reads: waiters of both share one queue, and neither passes the other.
// Each listens to a channel of its own, the lock's with :owner behind it. A backend without
// scripts has no queue, and passes no waiter in the queue of others.
//
// Both layouts have Redisson's RReadWriteLock and RPermitExpirableSemaphore for the
// other modes. Beside each hold of Redisson's structures stands {name}:owner:distlock,
// for Inspect, with the hold's TTL.
//
// No lock has the name of such a key, because one would spoil the other. A name, with its
// prefix, is ErrInvalid if it begins with distlock_line:, distlock_places:,
// distlock_guard: (of package fenceredis), redisson_lock_queue:, redisson_lock_timeout:,
// redisson_lock_token: or redisson_unlock_latch:; if it ends in distlock:fence, also with
// :{number} behind it; and if it has a brace and ends in :timeout, :distlock,
// :distlock:none, :distlock_guard, or :rwlock_timeout: and a number. By Redisson's rule
// {a} and a have the same keys beside them. So in the layout "redisson" {a} is ErrInvalid
// as well, and in the layout "string" the permits of a semaphore {a} are in
// {a}:distlock:timeout, where Redisson does not look.
//
// A message that arrives late never shortens a hold: renewing it and
// acquiring it again set the greater of what is left and the TTL. Redisson's own clients set the TTL.
//
// In the layout "string" a semaphore's counter ends with its last permit. In the
// layout "redisson" it stays, because a waiter in Java that finds it gone
// waits for ever. So semaphores shared with Java need layout=redisson: in the layout
// "string" a counter without a TTL is other data while no client holds a permit. A
// semaphore that Java gave a TTL is not used.
//
// # Fences
//
// In the layout "string" fences come from the ids of one empty stream, distlock:fence,
// the only key that stays. An id is the greater of the last one plus one and the
// server's clock. So fences increase even if Redis loses its data, or a
// failover loses the last ids, unless the clock goes back by more than was lost. Fences are
// (ms * 1000 + sequence) * 1024, which is less than 1<<63 until the year 2255; the 1024
// are for hand-off within a process. In the layout "redisson" a fence is the token, which
// Java increments and distlock moves up to the clock in microseconds. Tokens have no TTL, as in
// Redisson.
//
// # What can go wrong
//
// Redis acknowledges before it has stored or replicated. A crash or failover can lose a
// lock that is held. Then there are two holders, and only the fence tells them apart.
// Redis ends TTLs by its wall clock: a step forward ends locks early.
//
// All scripts may be executed twice for one call: the second time finds what the first
// one made for that Owner. This package does not repeat a release whose answer was lost, since
// the second answer would say that the lock had been lost.
//
// # Other data
//
// Acquire and Inspect return ErrInvalid for a key whose value no lock library wrote: another
// type, a hash in another form than Redisson's, a string without a TTL that is no UUID and
// not 32 hex digits, a JSON object, or a string of more than 1024 bytes. In the layout "string",
// other strings are respected as locks of other clients, and Inspect shows them as
// Foreign. List names only locks in distlock's and Redisson's forms. A prefix keeps locks
// apart from other data.
//
// # Replicas
//
// With replicas=1, or Options.Replicas, a lock counts as acquired once so many replicas have
// acknowledged it: WAIT follows on the same connection. If too few have within
// replica_timeout (1s), the lock is released at once and the attempt fails with "0 of
// 1 replicas have it", which the core retries as long as its caller waits. The outcome of a
// renewal that too few replicas acknowledge is unknown, so that a lease
// whose master has lost its replicas ends in time. Releases don't ask the replicas: after a
// failover that undoes one, the TTL ends the lock. While WAIT waits, its connection does nothing
// else: outside a cluster, it is one of the client's pool that the call has to itself.
// replica_timeout should be well below a quarter of the shortest TTL.
//
// Open succeeds with too few replicas: they may come later.
//
// This is a promise about copies and not about failovers. A failover keeps a lock that the
// promoted replica has acknowledged. So if all replicas must acknowledge, the lock survives
// the death of its master. With fewer, a replica that lacks the lock may be promoted:
// Sentinel and Cluster prefer the replica with most data, and neither promises that. A
// replica that acknowledges has the lock in memory, not on disk. And a master that is
// cut off together with a replica grants locks that they both acknowledge,
// while other clients get the same locks elsewhere, until min-replicas-to-write, the end of
// the partition, or the TTL ends that. Fences increase all the same.
//
// # Without scripts
//
// If the server does not let its user run scripts, there are exclusive locks in the
// layout "string", which are shared with clients that use scripts, under fences of one counter.
// There are no other modes, no queue, and no layout "redisson". Open finds out by itself;
// with a client of your own set Options.Scripts to ScriptsOff.
//
// A lock is taken in one round trip, by SET NX, GET and XADD. It is renewed and released in
// two, on a connection of the client's pool that the call has to itself: WATCH, MGET and PTTL,
// then MULTI, the change, and EXEC. If its Owner acquires it again, that takes three. A refused
// attempt uses up a fence. The value of a lock lacks its fence, so Inspect does not show it. A
// counter that is lost and used again within the same millisecond may repeat a fence, where
// scripts look at the clock's microseconds. Inspect shows who holds a read/write lock or
// an RLock of others, without the metadata, and no semaphores; List shows plain locks only.
//
// # Permissions
//
// A user needs the keys above, the channels distlock_free:*, redisson_lock__channel:*,
// redisson_rwlock:*, redisson_sc:*, and the commands
//
//   - with scripts: EVALSHA, EVAL and those of scripts/*.lua;
//   - without: SET GET PTTL EXISTS XADD, WATCH UNWATCH MGET MULTI EXEC PEXPIRE DEL LINDEX
//     PUBLISH;
//     for Inspect and List TYPE TIME HGET HKEYS LRANGE SCAN GETRANGE;
//   - with replicas: WAIT.
//
// A cluster needs CLUSTER SLOTS besides, and for sharded messages PUBSUB SHARDNUMSUB,
// SPUBLISH, SSUBSCRIBE and SUNSUBSCRIBE on the same channels. A user who may not send
// PUBSUB SHARDNUMSUB gets classic messages: if other users have sharded ones, set
// pubsub=on.
//
// Without SUBSCRIBE waiters poll. If the right to run scripts is withdrawn later, attempts
// fail with ErrInvalid; a holder keeps its lock until its TTL ends or the right is back.
//
// docs/backends/redis.md has the rules of an ACL.
//
// Tested with Redis 7.0.15, and 6.2.14 alone.
package redislock
