// Package zk tests that distlock shares a lock with go-zookeeper's zk.Lock. It reproduces the bugs of zk.Lock
// beside distlock, which doesn't have them. It is a module of its own, so that go-zookeeper never reaches
// distlock's go.mod.
package zk
