// Package record makes locks of a store that can do one thing: replace a record if it is still the version that was
// read. It is what the backends for Kubernetes and S3 have in common.
//
// A lock is one [Record], of its holder or free. An attempt that finds it free, or finds none, replaces it. A renewal
// replaces it by the same with another version. A release replaces it by a free one, which keeps the counter of fences.
// All three are conditional on the version, so of any two that know the same version at most one takes effect, and one
// that arrives late takes none.
//
// # The end of a hold
//
// A store without a clock ends no hold, and clocks of two machines are not compared. A hold whose process died is over
// for a client that has seen one version of its record for longer than the record's TTL by its own monotonic clock, from the
// answer of the read that first saw it (driver.Caps.Observed). The holder counts from before its write, so it gives up
// first, also if its clock is slower by a hundredth.
//
// A client that has just come has seen nothing, and is refused for a TTL. A hold that nobody has taken since may be
// renewed late: it was not free for anyone.
//
// # Calls without an answer
//
// Each write carries a token of its own. Whatever a write answers but success, also that the version is another one, the
// record is read: if it has the token, the write took effect, though a proxy may have sent it twice. If the version is
// another one, the write never will. Otherwise the outcome is unknown, and a Release writes a free record over
// that version, so that the late write finds another one.
//
// # What is remembered
//
// A client remembers the last version that it saw of some thousands of names, when it saw that first, and who asked for
// what without an answer. To forget costs a read, and restarts the wait for a hold whose process died.
package record
