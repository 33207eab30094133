// Package sqlitelock keeps locks in an SQLite file, for the processes of one host.
//
//	b, err := sqlitelock.Open(ctx, "sqlite:/var/lib/app/locks.db")
//
// There is no server. Open makes the file if it doesn't exist. The file holds nothing but
// locks: the database of another program is refused, since its long transactions would
// stall renewals. It must be on a local disk and be used by one host only. Its directory
// needs room for the files -wal, -shm and -notify beside it. Never remove the file while it
// is in use: a backend that has it open returns errors then, but a process that makes a
// new one does not see the locks in the old file. If -wal or -shm is removed, backends
// that have the file open return errors too, and on Linux nobody else can open it until
// they are closed. Open refuses a file with a hard link, or one that is mounted without
// its directory.
//
// # Capabilities
//
// All modes, fair queues on request, spans of fences, floors, downgrades, and full Inspect
// and List. Each change is one transaction, which begins with the write lock. Concurrent
// calls of one process share a transaction. A call that comes alone runs it by itself: Acquire and
// Release may return later than their context ends if the disk does not answer, unless synchronous is full.
//
// # Crashes
//
// A killed process leaves a whole file, and its holds end with their TTL. A reboot or a
// power loss ends all holds, since their holders are dead. The clock tells: it is behind
// the last time that the file recorded, at most a second before the last grant or renewal.
// After a boot that already lasts longer, holds end with their TTL. So synchronous=normal is safe as the default, although a power loss
// may undo the last moments. Only fences are at risk: one repeats if the host's clock
// comes back with an earlier time as well. Use synchronous=full on hosts whose clock doesn't run
// without power. It costs about one disk flush per call.
//
// On a full disk, or while the directory can't be reached, calls fail with an unknown
// outcome. Existing holds stay, and end with their TTL.
//
// # Time
//
// On Linux holds end by CLOCK_MONOTONIC, which all processes of a host share. It doesn't
// jump, and Go's runtime measures leases with it too: both stand still while the host is
// suspended, so no hold ends while its holder sleeps. The offsets of time namespaces are
// subtracted; boot ids decide nothing, since a container may have its own. Other systems have no clock that is known to be shared, and holds end by the
// wall clock: a jump moves their ends, and they survive a reboot until their TTL has passed.
//
// # Fences
//
// A fence is the version of the grant times 1024, plus the hand-off inside the process. Each change
// raises a name's version, to the wall clock in µs at least. So fences also increase if the
// file is lost, and last until the year 2255. Rows of names that were not used for a
// minute are removed bit by bit; the versions of new rows lie above theirs.
//
// # Waiting
//
// On Linux a release wakes waiters in other processes within about a millisecond, through
// inotify on the -notify file. Elsewhere waiters poll.
package sqlitelock
