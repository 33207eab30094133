// Package sqlitelock keeps locks in an SQLite file, for the processes of one host.
//
//	b, err := sqlitelock.Open(ctx, "sqlite:/var/lib/app/locks.db")
//
// There is no server. The file is made when it doesn't exist, and holds nothing but
// locks: a database of another program is refused, not extended, since its long
// transactions would stall renewals. It must be on a local disk, and be used by one
// host only; its directory needs room for files beside it (-wal, -shm, -bell).
// Never remove the file while it is in use. A backend that finds it gone answers
// with errors, but those who open the path anew don't see the locks in the old one.
//
// # What it can do
//
// All modes, fair lines on request, fences with spans, floors, downgrades, and
// Inspect and List in full. Every attempt is one transaction that begins with the
// write lock. Calls that come together, from any number of goroutines, share a
// transaction.
//
// # Crashes
//
// A killed process leaves a whole file; its holds end with their TTL. A reboot or a
// power loss ends every hold, since nobody who held is alive: the file remembers
// the boot that its holds belong to. That is why synchronous=normal is the default
// although the last moments before a power loss may be undone with it. What is left
// at risk is a fence: it repeats if the host's clock, too, comes back with an
// earlier time than it had. On hosts whose clock doesn't run without power use
// synchronous=full, which costs about the time of one disk flush per call.
//
// On a full disk grants and releases fail with errors of unknown outcome; what is
// held stays held, and ends with its TTL.
//
// # Time
//
// On Linux holds end by CLOCK_MONOTONIC, which all processes of a host share. It
// doesn't jump, and it is the clock that Go's runtime measures leases with: while
// the host is suspended both stand still, so no hold ends under a sleeping holder.
// The offsets of time namespaces are taken out. Elsewhere there is no such clock
// that is known to be shared; holds end by the wall clock, so a jump of it moves
// their ends, and they outlive a reboot until their TTL has passed.
//
// # Fences
//
// A fence is the grant's number times 1024, plus the hand-off inside the process.
// Numbers increase by one, and are at least the wall clock in µs: fences increase
// over a lost file too, and last until the year 2255. Rows of names that were not
// used for a minute are removed bit by bit; the numbers of new rows lie above theirs
// in any case.
//
// # Waiting
//
// On Linux a release wakes waiters in other processes in about a millisecond, through
// inotify on the -bell file; nobody polls. Elsewhere waiters poll.
package sqlitelock
