// Package zklock keeps locks in ZooKeeper (3.5 or later), in the format of Apache Curator's
// recipes, so that Go and Java programs can share locks.
//
//	b, err := zklock.Open(ctx, "zk://host1:2181,host2:2181/chroot")
//
// The lock "orders/555" is the node /orders/555 below the chroot. For a Curator client with the
// chroot in its connect string, these recipes on that path are the same lock:
//
//   - Mutex: InterProcessMutex;
//   - RWMutex: InterProcessReadWriteLock;
//   - Semaphore: InterProcessSemaphoreV2 with as many leases as the limit.
//
// zk.Lock of go-zookeeper/zk is the same as a Mutex. Characters that a ZooKeeper path can't contain
// are written as %XX, so any name is possible.
//
// # URL
//
//	zk://user:password@host1:2181,host2:2181/chroot?timeout=5s&acl=creator
//	zks://host1:2281/chroot?ca=authority.pem&cert=own.pem&key=own-key.pem
//
// The default port is 2181. A user logs in with the scheme "digest". The chroot must exist. zks
// uses TLS: ca names a file with trusted authorities, cert and key the client's own certificate, and servername the
// name in the certificates of all servers, instead of the hosts. These files are read again for each connection.
//
//	timeout        how long opening a session may take; default 5s
//	acl            open (default): everybody has access to the nodes, as in Curator;
//	               creator: only the URL's user
//	password_file  a file with the password, in place of the URL's; it is read again for each
//	               connection, and when the servers refuse a right
//
// # Refusals
//
// What the servers refuse for now, because of the login, the rights or a quota, ends nothing: the call
// fails with the reason, and may be repeated. Only Open, and a backend's first call, answer ErrInvalid.
//
// # Sessions
//
// Locks with the same TTL share a session, whose timeout is twice the TTL: a session provably lives
// for another half of its timeout. Open learns the servers' bounds for a session timeout, and half
// of them bound the TTL. When a session ends all its holds are lost, and its waiters leave the
// queues. Nothing is carried over to its successor. Servers that have lost their data know no session:
// that is the end of all. A session stays alive as long as the process, also for holds that are not
// renewed: these last until they are released.
//
// # Fences
//
// A fence is the number of a transaction, which ZooKeeper counts for all nodes together. It is the
// last transaction that changed the children of the lock's path, as seen in the listing that
// granted the lock. When a holder acquires again it is the transaction that rewrote the data of its
// node. So fences increase:
//
//   - A holder's later fences come from later transactions.
//   - The next holder has seen the previous one's node deleted. The deletion is a later
//     transaction than all writes to that node, and it changed the children: so the next
//     fence is at least that number.
//   - The creation of the holder's own node, which other clients use, could go back: a
//     waiter's node may be older than a fence of the holder before it.
//   - If a lock's path is deleted and made again, that is a later transaction.
//   - Permits are held side by side, so two of them may see the same listing. A permit's
//     fence is the transaction that made its own node if no other lease has come or gone
//     since, and otherwise one that rewrites it.
//
// Readers that hold at the same time may have the same fence. It is above the fences of all writers
// that have ended.
package zklock
