package redislock

import (
	"cmp"
	"fmt"
	"time"

	"github.com/distlock/distlock/backend/redislock/internal/redisconn"
	"github.com/distlock/distlock/driver"
)

// Layout is how locks are written in Redis. All users of a lock must agree on it.
type Layout string

// The layouts.
const (
	// String is the default: a string key, as all programs write it that lock with
	// SET name value NX PX. All modes have one queue.
	String Layout = "string"

	// Redisson writes Redisson's RLock and RFencedLock, RReadWriteLock and RPermitExpirableSemaphore, for locks shared
	// with Java. Only exclusive locks have a queue.
	Redisson Layout = "redisson"
)

// Scripts says whether scripts are used. Without them there are exclusive locks only.
type Scripts string

// The choices.
const (
	// ScriptsAuto is the default: Open finds out whether the server lets its user run
	// scripts. A backend on a client of your own uses scripts.
	ScriptsAuto Scripts = "auto"

	// ScriptsOff is for servers and users that may not run scripts.
	ScriptsOff Scripts = "off"
)

// Options are how a Backend uses Redis. The zero value is the default.
type Options struct {
	// Layout is String if empty.
	Layout Layout

	// Prefix is put before every lock's name, to keep the locks of several
	// applications apart. Java's side needs a NameMapper that does the same.
	Prefix string

	// Name is the server's name in Caps; it must be the same in every process.
	// The default is made of the client's address and database, and of Layout and Prefix.
	Name string

	// Scripts is ScriptsAuto if empty.
	Scripts Scripts

	// PubSub is PubSubAuto if empty.
	PubSub PubSub

	// Replicas is how many replicas must have acknowledged a lock before it counts as
	// acquired or renewed. The default, 0, does not ask them. An attempt that too few
	// acknowledge is released, and fails with an error that says how many did. See
	// the package's comment for what that prevents.
	Replicas int

	// ReplicaTimeout is how long an attempt waits for them; the default is 1s. It must
	// be less than the client waits for an answer, and should be much less than a TTL.
	ReplicaTimeout time.Duration
}

// PubSub says how a release is published. All users of a lock must agree on it: a waiter that uses
// another way is not notified, and polls.
type PubSub string

// The choices. They are Redisson's.
const (
	// PubSubAuto is the default: sharded in a cluster whose servers know it and let their
	// user ask (PUBSUB SHARDNUMSUB), else classic.
	PubSubAuto PubSub = "auto"

	// PubSubOn is sharded: SPUBLISH and SSUBSCRIBE. Only a cluster has that.
	PubSubOn PubSub = "on"

	// PubSubOff is classic: PUBLISH and SUBSCRIBE.
	PubSubOff PubSub = "off"
)

// mode returns the mode of p for a client, which is unknown if it must be read from the server.
func (p PubSub) mode(c *redisconn.Client) (redisconn.PubSubMode, error) {
	switch p {
	case "", PubSubAuto:
		if c.Slotted() {
			return redisconn.PubSubUnknown, nil
		}
		return redisconn.PubSubClassic, nil
	case PubSubOff:
		return redisconn.PubSubClassic, nil
	case PubSubOn:
		if !c.Slotted() {
			return 0, fmt.Errorf("%w: pubsub %q: only a Redis Cluster has sharded messages: want %q or %q", driver.ErrInvalid, p, PubSubAuto, PubSubOff)
		}
		return redisconn.PubSubSharded, nil
	}
	return 0, fmt.Errorf("%w: pubsub %q: want %q, %q or %q", driver.ErrInvalid, p, PubSubAuto, PubSubOn, PubSubOff)
}

const (
	defaultReplicaTimeout = time.Second
	maxReplicas           = 1000
)

// replicas says how many replicas must have a lock before it counts.
//
// Redis answers before its replicas have a write. WAIT, behind the write and on its connection,
// answers how many have it by now, and keeps later commands of that connection waiting.
type replicas struct {
	need    int
	timeout time.Duration
}

// newReplicas returns what o says. WAIT must end before the client's timeout, if that is known.
func newReplicas(o *Options, timeout time.Duration) (replicas, error) {
	r := replicas{o.Replicas, cmp.Or(o.ReplicaTimeout, defaultReplicaTimeout)}
	switch {
	case r.need < 0 || r.need > maxReplicas || r.timeout < 0:
		return r, fmt.Errorf("%w: %d replicas within %v: want 0 to %d, and no negative timeout", driver.ErrInvalid, r.need, r.timeout, maxReplicas)
	case o.ReplicaTimeout > 0 && r.need == 0:
		return r, fmt.Errorf("%w: a replica timeout of %v, and no replicas to wait for", driver.ErrInvalid, r.timeout)
	case r.need > 0 && timeout > 0 && r.timeout >= timeout:
		return r, fmt.Errorf("%w: a replica timeout of %v: want less than %v, which is how long the client waits for an answer", driver.ErrInvalid, r.timeout, timeout)
	}
	return r, nil
}
