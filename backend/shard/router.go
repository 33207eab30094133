package shard

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/wait"
)

// ErrElsewhere is returned by Do for the keys of other instances.
var ErrElsewhere = errors.New("shard: another instance has this key")

// Router routes each key to one of several instances of a program, by the same hashing that
// places locks. Where all requests for a key reach its instance, a mutex of that process can
// replace a distributed lock. It is safe for concurrent use.
//
// It is a calculation and not an agreement. Two processes with different lists of instances, as
// during every deployment, can both believe that they have a key. So can an instance that was
// replaced and does not know it yet. Where that does harm, add a lock or a fence. That is cheap,
// since the lock is rarely contended.
type Router struct {
	self      string
	instances []string
	seeds     []uint64
	mutex     wait.KeyedMutex[string]
}

// NewRouter returns a Router for the given instances. self is the name of this process's
// instance, or empty for a process that only routes. Names must be the same in every process,
// and should be stable, as in a StatefulSet, so that a restart moves no keys. Their order
// does not matter. The error is ErrInvalid if names are empty or given twice.
func NewRouter(self string, instances ...string) (*Router, error) {
	r := &Router{self: self, instances: slices.Sorted(slices.Values(instances))}
	switch {
	case len(instances) == 0:
		return nil, fmt.Errorf("%w: shard: no instances", driver.ErrInvalid)
	case r.instances[0] == "":
		return nil, fmt.Errorf("%w: shard: an instance has no name", driver.ErrInvalid)
	case len(slices.Compact(slices.Clone(r.instances))) < len(instances):
		return nil, fmt.Errorf("%w: shard: an instance is given twice: %q", driver.ErrInvalid, r.instances)
	case self != "" && !slices.Contains(instances, self):
		return nil, fmt.Errorf("%w: shard: this instance, %q, is none of %q", driver.ErrInvalid, self, r.instances)
	}
	for _, name := range r.instances {
		r.seeds = append(r.seeds, hash(name))
	}
	return r, nil
}

// Of returns the instance that has key.
func (r *Router) Of(key string) string { return r.instances[pick(r.seeds, key)] }

// Mine reports whether this instance has key.
func (r *Router) Mine(key string) bool { return r.self != "" && r.Of(key) == r.self }

// Do calls f while no other Do of this Router runs for key, and returns f's error. For a key
// of another instance it returns ErrElsewhere: pass the request on to Of(key). If ctx ends
// while other calls have the key it returns the context's error.
func (r *Router) Do(ctx context.Context, key string, f func(context.Context) error) error {
	if !r.Mine(key) {
		return fmt.Errorf("%w: %q has %s", ErrElsewhere, r.Of(key), driver.Quote(key))
	}
	unlock, err := r.mutex.Lock(ctx, key)
	if err != nil {
		return fmt.Errorf("shard: waiting for key %s: %w", driver.Quote(key), err)
	}
	defer unlock()
	return f(ctx)
}

// pick returns the index of the member that has a name: the one with the greatest score
// (rendezvous or highest random weight hashing, Thaler and Ravishankar 1998). A new member
// takes names from all others and moves no other name. When a member goes, the names of
// the others stay. seeds are the hashes of the members' names; there is at least one.
func pick(seeds []uint64, name string) int {
	h, best := hash(name), 0
	for i := range seeds {
		if score(seeds[i], h) > score(seeds[best], h) {
			best = i
		}
	}
	return best
}

// score must never change: programs of different versions have to agree.
func score(member, name uint64) uint64 { return mix(member ^ name) }

// hash is FNV-1a, mixed.
func hash(s string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	return mix(h)
}

// mix is the finalizer of SplitMix64: each bit of x changes about half of the result's bits.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
