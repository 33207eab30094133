// Package redislock keeps locks in Redis 6.2 or later, or Valkey: in one server, in the
// master that Sentinel names, or in a Cluster. docs/backends/redis.md describes keys, other data in
// their place, permissions (an ACL), and the ways to lose a lock.
//
//	b, err := redislock.Open(ctx, "redis://user:password@localhost:6379/0")
//	b, err := redislock.NewGoRedis(client, nil)  // *redis.Client or *redis.ClusterClient
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
// (see PubSub), replicas and replica_timeout (see Replicas), scripts (auto, off; see Without
// scripts), password_file (in place of the password; it is read at each login). With Sentinel:
// sentinel_user and sentinel_password or sentinel_password_file, if the sentinels want a login. With
// TLS: ca, a file of certificates to trust instead of the system's; cert and key, files with the
// client's own, all read for each connection; servername, the name in all servers' certificates, instead of the hosts; sentinel_tls=false if the sentinels have none.
//
// # Sentinel
//
// The sentinels are queried for the master when a server does not answer or turns out
// to be a replica, once a second while there is traffic, and before the first request
// after a pause. So a master that was replaced, but can still be reached, grants
// locks for another second, and for as long as the answer takes. The sentinel that answers may
// itself learn of the replacement up to two seconds late, from the others. If no sentinel
// can be reached, the old master is used for as long as it answers: min-replicas-to-write
// bounds that.
//
// # Cluster
//
// All keys of a lock lie in the slot of its name, and so does its channel. The text
// between the first { and the next } decides the slot. A name, with its prefix, that
// has a brace but no such text, as "a{b", "a}b" or "{}", is ErrInvalid, and so is such
// a prefix. The ends of readers, permits and places in the queue are times of
// the server's clock: on a server that is ahead they come earlier by as much. An exclusive lock keeps what is left.
//
// While a slot moves, a server refuses a script of whose keys it has only some. Exclusive locks and writers' of the layout "string" that
// nobody waits for have one key: they are acquired, renewed and released wherever it is, and a refused attempt gets no place in the queue.
// All else waits for the end of the move: locks that are waited for, readers and permits, the layout "redisson", Inspect, a backend
// without scripts, and with replicas all but renewals. What is held there is renewed while its keys are together; otherwise a lease ends in time.
//
// # How a lock is stored
//
// In the layout "string", the default, a lock is a string, as SET name value NX PX ttl
// makes it. So distlock and other programs that lock in this way exclude each other. The value of an exclusive
// hold is "owner meta fence", and ends in w for a writer's. A release deletes it if it begins with the Owner,
// and publishes a message. Readers and permits have a marker in its place, "shared read" or
// "shared permits 3"; a sorted set beside it has the end of each hold, and a hash what Inspect shows. All end
// with the last holder. Without the marker nothing is held, whatever is beside it.
//
// A name of this layout has one queue. All kinds of holds wait for each other in the order in which they came:
// readers get in together, permits as far as they go. Another limit than that of the permits that are
// held or waited for is ErrInvalid.
//
// A free lock is taken by four plain commands in one pipeline, by an exclusive holder or a writer: SET NX, XADD for the fence,
// GET, which shows that the fence was drawn while the lock was held, and EXISTS, which looks for a queue. All else is a script: a
// refusal, an attempt for a name that was refused lately, readers and permits, a renewal, a release with waiters. A release without
// is a short script, or DELIFEQ (Valkey 9) or DELEX (Redis 8.4).
// So the value lacks its fence until the first renewal. Until then Inspect and refusals read it from the stream of fences, where
// the XADD has left an entry with the end of the Owner. The stream keeps the last hundred thousand entries (2.5 MB), or a hundred
// of each slot: whose lock is older than those, or has come with its slot, and was never renewed, may have an unknown fence.
//
// In the layout "redisson" an exclusive lock is an RLock and RFencedLock, and its queue is an
// RFairLock's: waiters of both share one queue. The other modes are RReadWriteLock and
// RPermitExpirableSemaphore, which have none. Beside each hold is the key {name}:owner:distlock,
// for Inspect, with the hold's TTL.
//
// A backend without scripts has no queue, and passes no waiter in the queue of others. No lock has the name
// of a key that belongs to another lock: such a name is ErrInvalid.
//
// A message that arrives late never shortens a hold: renewing it and acquiring it again set the
// greater of what is left and the TTL. Redisson's own clients set the TTL.
//
// In the layout "redisson" a semaphore's counter stays, because a waiter in Java that finds it gone
// waits for ever. Read/write locks and semaphores that are shared with Java need layout=redisson.
//
// # Fences
//
// In the layout "string" fences come from the ids of one stream, distlock:fence (one for each slot
// of a cluster), the only key that stays. An id is the greater of the last one plus one and the
// server's clock. So fences increase even if Redis loses its data, or a
// failover loses the last ids, unless the clock goes back by more than was lost. Fences begin at
// (ms * 1000 + sequence) * 1024, which is less than 1<<63 until the year 2255. Half of the 1024
// are for hand-off within a process; where they begin depends on the Owner, so that two masters of a split brain
// hardly ever give the same one. In the layout "redisson" a fence is the token, which
// Java increments and distlock moves up to the clock in microseconds. Tokens have no TTL.
//
// # What can go wrong
//
// Redis acknowledges before it has stored or replicated. A crash or failover can lose a
// lock that is held. Then there are two holders, and only the fence tells them apart.
// Redis ends TTLs by its wall clock: a step forward ends locks early, and a step back lets what ends by its
// TTL end later by as much. A release does not depend on the clock.
//
// All scripts may be executed twice for one call: the second time finds what the first
// one made for that Owner. This package does not repeat a release whose answer was lost, since
// the second answer would say that the lock had been lost.
//
// # Replicas
//
// With replicas=1, or Options.Replicas, a lock counts as acquired once so many replicas have
// acknowledged it: WAIT follows on the same connection. If too few have within
// replica_timeout (1s), the lock is released at once and the attempt fails with "0 of
// 1 replicas have it", which the core retries as long as its caller waits. The outcome of a
// renewal that too few replicas acknowledge is unknown, so that a lease
// whose master has lost its replicas ends in time. Releases don't need replicas: after a
// failover that undoes one, the TTL ends the lock. While WAIT waits, its connection does nothing
// else: outside a cluster, it is one of the client's pool that the call has to itself.
// replica_timeout should be well below a quarter of the shortest TTL. Open succeeds with too few
// replicas: they may come later.
//
// This is a promise about copies and not about failovers. A failover keeps a lock that the
// promoted replica has acknowledged. With fewer than all, a replica that lacks the lock may be
// promoted. A replica that acknowledges has the lock in memory, not on disk. And a master that is
// cut off together with a replica grants locks that they both acknowledge,
// while other clients get the same locks elsewhere. Fences increase all the same.
//
// # Without scripts
//
// If the server does not let its user run scripts, there are exclusive locks in the
// layout "string", which are shared with clients that use scripts, under fences of one counter.
// There are no other modes, no queue, no layout "redisson" and no replicas. Open finds out by itself;
// with a client of your own set Options.Scripts to ScriptsOff.
//
// A lock is taken in one round trip, by SET NX, XADD, GET and EXISTS. It is renewed and released in
// two, on a connection of the client's pool that the call has to itself: WATCH, MGET and PTTL,
// then MULTI, the change, and EXEC. A refused attempt uses up a fence. A counter that is lost and used again within the same
// millisecond may repeat a fence, where scripts look at the clock's microseconds. Inspect and List
// show plain locks only.
//
// # Permissions
//
// A user needs the keys above, the channels distlock_free:*, in the layout "redisson" redisson_lock__channel:*,
// redisson_rwlock:* and redisson_sc:*, and the commands
//
//   - with scripts: EVALSHA, EVAL and the commands in scripts; with replicas: WAIT. DELIFEQ or DELEX is used if the
//     user may send it and COMMAND INFO;
//   - without: SET GET PTTL EXISTS XADD, WATCH UNWATCH MGET MULTI EXEC PEXPIRE DEL LINDEX
//     PUBLISH, TIME and XRANGE for the fence that a refusal tells, and LRANGE to notify several readers at once; for Inspect and List TYPE TIME LRANGE SCAN GETRANGE.
//
// A cluster needs CLUSTER SLOTS besides, and for sharded messages PUBSUB SHARDNUMSUB,
// SPUBLISH, SSUBSCRIBE and SUNSUBSCRIBE. A user who may not send PUBSUB SHARDNUMSUB gets classic
// messages, and asks again from time to time: if other users have sharded ones, set pubsub=on.
//
// Without SUBSCRIBE waiters poll. A right that is missing from the beginning is ErrInvalid at the first attempt. If a right or the login is withdrawn later, all calls fail with an
// error that says so and is no fact, so they are repeated. A holder keeps its lock until its TTL ends or the
// right is back.
package redislock
