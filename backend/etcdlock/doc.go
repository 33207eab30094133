// Package etcdlock keeps locks in etcd 3.4 or later.
//
//	b, err := etcdlock.Open(ctx, "etcd://user:password@host1:2379,host2:2379/locks")
//	b, err := etcdlock.New(client, nil)  // your own *clientv3.Client, which stays yours
//
// # URL
//
//	etcd://[user[:password]@]host1[:2379],host2,…[/folder]
//	etcds://…            the same with TLS
//
// The hosts are members of one cluster. List all of them if you can: members that don't answer
// are skipped. The folder, with a slash at its end, precedes every lock's name: "/locks" is the prefix
// "locks/", and "//locks" is "/locks/".
//
// Parameters: timeout (of Open; default 5s); password_file, in place of a password, which is read again at each
// login. With TLS: ca, a file of certificates to trust
// instead of the system's; cert and key, files of a client certificate, by which etcd may also
// know the user; servername, the name in all servers' certificates, instead of the hosts. The files are read again for
// each connection.
//
// # Permissions
//
// A user needs the right to read and write all keys with the prefix, or those below
// "prefix name /" for each name. Without any, Open succeeds, and Acquire returns ErrInvalid. A right that is withdrawn
// later may be given back: calls fail, and are to be repeated.
//
// # How a lock is stored
//
// Each hold, and each place in the queue, is a key with an etcd lease of its own:
//
//	prefix name / lease in hex
//
// The value is a small JSON document: the mode, the
// owner, a semaphore's limit, and the metadata for Inspect. The keys below "prefix name /" are a
// queue in the order of their creation. The first one holds a mutex. A reader holds if
// only readers are before it, and a permit if fewer than the limit are. This is the queue of
// concurrency.Mutex, of etcdctl lock and of the v3lock service, so their users and users of distlock
// exclude each other and take turns. Their keys count as mutexes, which block every kind of lock.
//
// Waiters queue in every mode, first come, first served. A try writes nothing unless it is
// granted.
//
// # Leases
//
// Each hold and each place ends by its own TTL, in whole seconds, and up to a second and a half and a commit later. Close
// leaves them. Any connection renews, acquires again and releases them by their Owner (Caps.Detached). A free lock is kept for the first in the
// queue for driver.TurnLife. The shortest TTL is the server's: one and a half times its election timeout, two seconds by
// default.
//
// After an answered release the next hold gets the lease, so that a lock and its unlock are two requests. A lease with a
// call that had no answer is revoked: what arrives late finds no lease.
//
// # Fences
//
// A fence is the revision of the answer that granted the lock, as in ETCD_LOCK_REV of etcdctl and
// in the header of the v3lock service's answer. Fences rise over all locks of a cluster, and start
// again only if the cluster is recreated without its data. Readers that are granted together may
// have the same fence.
//
// # Names
//
// Names are used as they are. If one name extends another after a slash, as "jobs/7" extends
// "jobs", the keys of the longer one are in the key range of the shorter one. To distlock these are
// two locks, but a try of "jobs" takes another round trip while "jobs/7" is used. The official clients
// take a holder of "jobs/7" for a waiter of "jobs".
package etcdlock
