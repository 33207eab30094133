/**
 * Distributed locks of a distlock server. {@link io.github.distlock.Locks} is the client, {@link io.github.distlock.Lease} a lock that is
 * held.
 */
package io.github.distlock;
