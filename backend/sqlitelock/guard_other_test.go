//go:build !linux

package sqlitelock

// guards says that processes find those that use other files.
const guards = false
