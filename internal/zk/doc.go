// Package zk speaks to ZooKeeper as a lock needs it: one session that is never
// replaced behind one's back, contexts on every call, several requests in one round
// trip, watches that can be given up, and a deadline until which the session certainly
// lives.
package zk
