//go:build !go1.24

package distlock

// weakLease refers to no lease, since Go 1.23 has no weak pointers.
type weakLease struct{}

func makeWeak(*Lease) weakLease { return weakLease{} }

func (weakLease) Value() *Lease { return nil }
