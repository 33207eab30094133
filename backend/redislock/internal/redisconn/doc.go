// Package redisconn is the transport of package redislock. It takes keys, commands and channels, and
// returns replies, messages and errors. It knows nothing of locks.
//
// A Client finds the Server that has a key: the only one, one of a cluster, or the master that
// sentinels name. A Server sends commands once and never repeats one that may have been executed.
// It is reached by go-redis or rueidis.
package redisconn
