// Package zk shows that distlock shares a lock with go-zookeeper's zk.Lock. What is wrong
// with that is shown beside distlock, which must not have it. It is a module of its own,
// so that go-zookeeper never reaches distlock's go.mod.
package zk
