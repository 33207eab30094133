// Package etcd shows that distlock shares a lock with etcd's own: concurrency.Mutex of
// its client, etcdctl lock, and the v3lock service, on Debian's release of etcd and on
// the current one. What is wrong with those is shown beside distlock, which must not
// have it.
//
// It is a module of its own, so that etcd's server never reaches distlock's go.mod.
// That one also says which release is the current: the tests of all modules build it
// from here.
package etcd
