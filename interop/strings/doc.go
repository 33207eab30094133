// Package strings tests that distlock shares a lock with libraries that keep it as a plain string key
// (SET name value NX PX, and a compare-and-delete): redsync, bsm/redislock and redis-py. It is a module
// of its own, so that they never reach distlock's go.mod.
package strings
