// Package drivertest is the conformance suite for backends, and the specification of
// package driver where its comments leave a doubt.
//
// A backend's test of lock semantics is six lines:
//
//	func TestConformance(t *testing.T) {
//		drivertest.Run(t, drivertest.Harness{
//			Open: func(ctx context.Context) (driver.Backend, error) { return mylock.Open(ctx, url) },
//		})
//	}
//
// Each [Check] is one promise. It works through two connections at a time that know
// nothing of each other, as two processes would, since what one connection remembers
// proves nothing. It returns an error that names the broken promise and the answer
// that broke it, so the suite also runs without package testing, against a live store.
//
// # What a check relies on
//
//   - Names of locks begin with "drivertest" and a random part, so runs at the same
//     time, and other users of the store, are not disturbed. (The names/start check
//     puts a few other characters in front.) What a check takes it also releases.
//   - What a backend claims in its Caps is proven. What it does not claim must be
//     refused with driver.ErrUnsupported where it can be asked for: modes, places in
//     line, a downgrade, asking a holder. Checks about the rest answer [ErrNotClaimed].
//     That a session backend without Caps.Fixed keeps a fixed hold for longer than its TTL
//     is not proven: it may end it sooner by chance.
//   - A backend whose Caps.Session is set need not end single holds: the suite closes
//     a connection where it would otherwise wait for a TTL.
//   - Lower bounds of times are exact, upper ones generous. Where a slow machine may
//     have let a hold end, the check repeats itself with a longer TTL before it
//     accuses anybody.
//
// # Who checks the checks
//
// The tests of this package break a backend in over a hundred ways, one defect each,
// and show that the check for it finds it. There is no check without such a defect.
package drivertest
