// Package etcd tests that distlock shares locks with etcd's own: concurrency.Mutex of its client,
// etcdctl lock and the v3lock service, on Debian's release of etcd and on the current one. It reproduces
// their bugs beside distlock, which doesn't have them.
//
// The go.mod of interop names the current release, which the tests of all modules use.
package etcd
