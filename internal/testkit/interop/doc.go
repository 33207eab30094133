// Package interop is what tests need that let distlock and another library share locks:
// a JVM with the other library that is driven in lines, a ledger that notices who should
// not be there together, crowds that take turns before it, waiters, and Go processes that are
// going to be killed.
//
// The Java half is in src: the Maven projects of interop/… are compiled with it.
package interop
