// Package s3lock keeps locks in a bucket of S3, or of another store that speaks its protocol and honours conditional
// writes. There is no server to run.
//
//	b, err := s3lock.Open(ctx, "s3://bucket/locks?region=eu-west-1")
//
// A lock is one small object, which is replaced only if it still has the ETag that was read. An uncontended lock and its
// release are two PUTs.
//
// # Capabilities
//
// Exclusive locks, spans of fences, floors, Inspect and List. Fences are counted in the object. S3 ends no hold and
// pushes nothing: waiters poll, and the lock of a process that died is free for those who have seen its object unchanged for its TTL
// (driver.Caps.Observed), and up to 10 s later for all others, since S3 says how old an object is (Caps.Late). The latter rests on the
// clocks of S3's hosts, which may be 5 s apart; Open checks that a proxy does not put its own in place, and clock=off does without. The
// longest TTL is a day.
//
// # What Open tries
//
// Open writes an object with a name of its own four times, under conditions that hold and that do not, reads it, and deletes it.
// A store that ignores a condition would let two hold one lock, and is refused.
//
// # Credentials
//
// They are found as all programs of AWS find them: in the environment, in the profile of AWS_PROFILE, by the role of a
// Kubernetes service account, from the container or the instance. They are looked up again before they expire.
//
// # Objects
//
// The key is the prefix, a slash and the name. Of a name, letters, digits, - and _ stand for themselves, and a dot that does not
// begin it; each other byte is ! and two hexadecimal digits. A name for which that takes more than 200 bytes ends in a hash.
//
// Objects of free locks stay. They may be deleted when they are a day old, by a lifecycle rule for the prefix: no hold
// lives longer without being written anew. The fences of a new object begin with the store's clock in microseconds, and so above all earlier ones.
package s3lock
