// Package zklock keeps locks in ZooKeeper (3.5 or later), in the format of Apache
// Curator's recipes, so that programs in Java take turns with those in Go.
//
//	b, err := zklock.Open(ctx, "zk://host1:2181,host2:2181/chroot")
//
// The lock called "orders/555" is the node /orders/555 below the chroot. Curator's
// recipes on that path, through a client with the chroot in its connect string, are the
// same lock:
//
//   - Mutex: InterProcessMutex;
//   - RWMutex: InterProcessReadWriteLock;
//   - Semaphore: InterProcessSemaphoreV2 with as many leases as the limit.
//
// zk.Lock of go-zookeeper/zk is the same as a Mutex. What ZooKeeper can't have in a path is
// written as %XX, so that any name will do.
//
// # URL
//
//	zk://user:password@host1:2181,host2:2181/chroot?timeout=5s&acl=creator
//	zks://host1:2281/chroot?ca=authority.pem&cert=own.pem&key=own-key.pem
//
// The port is 2181 unless given. A user is logged in with the scheme "digest". The chroot
// must exist. zks is with TLS: ca names a file with authorities to be trusted, cert and key
// the user's own certificate.
//
//	timeout  how long opening a session may take; default 5s
//	acl      open (default): what is made can be changed by everybody, as Curator has it;
//	         creator: by the URL's user only
//
// # Sessions
//
// Locks with the same TTL share a session of twice that: what can be proven is that a
// session lives for another half of its timeout. The bounds that the servers put on
// sessions are learnt by Open, and half of them bound the TTL. When a session ends all its
// holds are lost, and their places in line; a new one is another session, to which nothing
// of the old one belongs. A session is kept alive as long as the process lives, also for
// holds that nobody renews: those end when they are released.
//
// # Fences
//
// A fence is the number of a transaction, which ZooKeeper counts for all nodes together.
// That of a grant is the last one which changed the children of the lock's path, as the
// listing shows that let the holder in. When a holder asks again it is the one that wrote
// its node's data. So fences increase:
//
//   - What a holder is given later comes from a later transaction.
//   - A holder that has ended was seen to be gone by whoever holds next. The deletion of its
//     node was a later transaction than all that wrote to it, and changed the children: so
//     the next fence is at least that number.
//   - The node's own creation, which others use, would go back: a waiter's node is older
//     than what the holder before it may have been given meanwhile.
//   - A lock's path that was removed and made anew has been made by a later transaction.
//   - Permits are held side by side, so the listing may be the same for two of them. Their
//     fence is the transaction that made their own node, if no other has come or gone
//     since, and else one that writes to it.
//
// Readers that hold at the same time may have the same fence; it is above those of all
// writers that have ended.
package zklock
