// Package drivertest is the conformance suite for backends. Where the comments of package driver
// leave a question open, the suite is the specification.
//
// A backend's test of lock semantics is six lines:
//
//	func TestConformance(t *testing.T) {
//		drivertest.Run(t, drivertest.Harness{
//			Open: func(ctx context.Context) (driver.Backend, error) { return mylock.Open(ctx, url) },
//		})
//	}
//
// Each [Check] is one promise. It uses two connections that know nothing of each other, like two
// processes. It returns an error with the broken promise and the answer that broke it, so the suite
// also runs without package testing, against a live store.
//
// # What a check relies on
//
//   - Names of locks begin with "drivertest" and a random part, so concurrent runs and other users of
//     the store are not disturbed. (The check names/start puts a few other characters in front.) A
//     check releases what it takes.
//   - The claims in a backend's Caps are proven. Features that it does not claim must be refused with
//     driver.ErrUnsupported if a request can ask for them: modes, places in the queue, a downgrade,
//     revocation. Other checks return [ErrNotClaimed]. No check proves that a session backend
//     without Caps.Fixed keeps a fixed hold for longer than its TTL: it may end it sooner by chance.
//   - A backend with Caps.Session need not end single holds: the suite closes a connection where it
//     would otherwise wait for a TTL.
//   - Lower bounds of times are exact, upper ones generous. Where a slow machine may have let a hold
//     end, the check repeats with a longer TTL before it reports a broken promise.
//
// # Tests of the checks
//
// The tests of this package break a backend in over a hundred ways, one defect each, and show that
// the check for it finds it. There is no check without such a defect.
package drivertest
