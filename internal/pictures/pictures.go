// Package pictures draws the diagrams of the documents as SVG.
//
//	lease.go      how long a lease is trusted, and how long the store keeps it
//	handoff.go    which waiter a release wakes
//	failover.go   two holders after a failover, and the fence that saves the data
//
// Each drawing has its own background and follows the reader's preference for light or dark, so that
// it is readable on any page.
package pictures

// Pictures returns the drawings by their file names.
func Pictures() map[string]string {
	return map[string]string{
		"lease.svg":    lease(),
		"handoff.svg":  handoff(),
		"failover.svg": failover(),
	}
}
