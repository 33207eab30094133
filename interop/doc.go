// Package interop helps to test that distlock shares locks with a Java library: a JVM with that library,
// commanded line by line; a ledger that detects overlapping holds; parties that take turns under it;
// waiters; and Go processes that are killed.
//
// The Java half is in src. The Maven projects of interop/… are compiled with it.
package interop
