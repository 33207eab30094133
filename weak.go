//go:build go1.24

package distlock

import "weak"

// weakLease refers to a lease, and does not keep it alive.
type weakLease = weak.Pointer[Lease]

func makeWeak(l *Lease) weakLease { return weak.Make(l) }
