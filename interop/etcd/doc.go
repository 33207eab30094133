// Package etcd tests that distlock shares locks with etcd's own: concurrency.Mutex of its client,
// etcdctl lock and the v3lock service, on Debian's release of etcd and on the current one. It reproduces
// their bugs beside distlock, which doesn't have them.
//
// It is a module of its own, so that etcd's server never reaches distlock's go.mod. Its own go.mod
// names the current release, which the tests of all modules build from here.
package etcd
