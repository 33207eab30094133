// Package driver is the one interface between distlock and a coordinator.
//
// A driver makes single attempts and reports facts. Waiting, retrying, renewal,
// jitter, deadlines, queueing inside a process and the shape of errors belong to
// package distlock, so every backend behaves alike and a new one stays small.
//
// Only two kinds of programs need this package: a backend, and a combinator that
// makes one backend of several. Everyone else uses package distlock.
//
// # What the core promises a driver
//
//   - Names are non-empty UTF-8 without NUL. Any such name is valid: a driver
//     whose coordinator is pickier escapes or hashes it, injectively.
//   - Owner is a UUID in its 36 character form, fresh for each attempt to hold
//     and never used again after it was released. It is the proof of holding and
//     the idempotency key: the same Owner asked again is the same hold.
//   - No two calls run at once for one Owner. Calls for different Owners, also of
//     one name, do run at once.
//   - TTL lies between Caps.MinTTL and Caps.MaxTTL, and is [MaxTTL] at most; Mode is one of
//     Caps.Modes.
//   - After an unknown outcome the core asks again with the same Owner, or
//     releases that Owner until it is answered or its TTL has passed; with
//     Caps.Session until it is answered or the client is closed.
//   - An Owner that asks again asks for the same Name, Limit, TTL, Fixed and Meta, and
//     agrees to be asked for the lock or does not, as before. A downgrade changes Mode, and
//     may end that agreement.
//
// # What a driver promises the core
//
// The comments of [Backend] say it call by call. The suite in package drivertest
// checks it, and is the specification where the two differ.
//
//   - Answers are facts. A network error is never [ErrLost] and never a
//     [HeldError]; whatever is not one of the errors declared here counts as
//     unknown.
//   - Every check of the Owner is atomic with the change that it guards.
//   - Fences of a name strictly increase, also over expiry, restarts and lost
//     counters, and stay below 1<<63.
//   - Times are durations, never instants: clocks of two machines are not
//     compared. Where a coordinator needs a clock it uses its own.
package driver
