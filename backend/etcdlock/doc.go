// Package etcdlock keeps locks in etcd 3.4 or later.
//
//	b, err := etcdlock.Open(ctx, "etcd://user:password@host1:2379,host2:2379/locks")
//	b, err := etcdlock.New(client, nil)  // your own *clientv3.Client, which stays yours
//
// # URL
//
//	etcd://[user:password@]host1[:2379],host2,…[/folder]
//	etcds://…            the same with TLS
//
// The hosts are members of one cluster, all of them at best: one that is down or does not
// answer is done without. The folder, with a slash at its end, is put before every lock's
// name; "/locks" puts "locks/" there, and "//locks" "/locks/".
//
// Parameters: timeout (of Open; default 5s). With TLS: ca, a file of certificates to trust
// instead of the system's; cert and key, files with the user's own, by which etcd may also
// know the user; servername, which all servers' certificates are for, instead of the
// hosts.
//
// # Permissions
//
// A user needs the right to read and write all keys with the prefix, or those below
// "prefix name /" for each name. Who lacks it can open a backend, and is refused
// with ErrInvalid when it comes to a lock.
//
// # How a lock is stored
//
// Each hold, and each place in line, is a key:
//
//	prefix name / lease in hex - slot
//
// Slots are small numbers, used again and again. The value is a small JSON document: the
// mode, the owner, a semaphore's limit, and, for Inspect, what the program told of
// itself. The keys below "prefix name /" form a line in the order in which they were
// created. Who has the first one holds a mutex; readers hold if no
// other kind of key is before theirs, permits if there are fewer than the limit. This is
// the line of concurrency.Mutex, of etcdctl lock and of the v3lock service: their users
// and distlock's keep each other out and take turns. What they write is a mutex to
// distlock, which keeps out every kind of lock until it ends.
//
// Waiters stand in line always, in every mode, and nobody passes them. A try writes
// nothing unless it is granted.
//
// # Sessions
//
// All holds with the same TTL, in whole seconds, share a lease. Renewing any of them
// keeps all of them; a process that dies, or closes the backend, loses all of them. A
// fixed hold, which nobody renews, has a lease of its own and ends by itself. The
// shortest TTL is the server's: one and a half times its election timeout, two seconds
// if that is not configured.
//
// # Fences
//
// They are etcd's revisions: that of the answer which granted the lock, as ETCD_LOCK_REV
// of etcdctl and the header of the v3lock service's answer. They rise over all locks
// of a cluster, and begin anew only if the cluster is made anew without its data. Readers
// that the end of a writer lets in together may have the same one.
//
// # Names
//
// A name is used as it is. If one name is another with a slash and more behind it, as
// "jobs" and "jobs/7", then the keys of the longer one lie among those of the shorter
// one. To distlock they are two locks all the same, but a try of the shorter one takes
// another round trip while the longer one is used; and the official clients take
// whoever holds "jobs/7" for someone who is in line for "jobs".
package etcdlock
