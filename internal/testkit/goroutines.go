// Package testkit holds what the tests of several packages share. It needs the standard library
// only.
package testkit

import "runtime"

// Goroutines returns the number of goroutines. runtime.NumGoroutine also counts those that have
// ended, by the thousand, while the garbage collector frees their stacks.
func Goroutines() int {
	for room := runtime.NumGoroutine(); ; room *= 2 {
		if n, ok := runtime.GoroutineProfile(make([]runtime.StackRecord, room)); ok {
			return n
		}
	}
}
