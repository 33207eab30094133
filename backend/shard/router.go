package shard

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/keyedmutex"
)

// ErrElsewhere is what Do answers for a key that another instance has.
var ErrElsewhere = errors.New("shard: another instance has this key")

// Router routes each key to one of several instances of a program, by the same hashing as
// locks to members. Where all requests for a key come to the instance that has it, a mutex of
// that process does instead of a distributed lock. It is safe for concurrent use.
//
// It is a calculation and not an agreement. Two processes with different lists of
// instances, as during every deployment and every change of scale, can both believe to have a
// key; so can an instance that was replaced and does not know it yet. Where that may do
// harm keep a lock or a fence behind it: it then costs little, since it is rarely contended.
type Router struct {
	self      string
	instances []string
	seeds     []uint64
	turns     keyedmutex.Turns[string]
}

// NewRouter routes to the given instances; self is the one that this process is, or empty
// for a process that only routes. Names must be the same in every process, and should be
// stable, as those of a StatefulSet are, so that a restart moves no keys. The order does not
// matter. ErrInvalid says what is wrong with the names.
func NewRouter(self string, instances ...string) (*Router, error) {
	o := &Router{self: self, instances: slices.Sorted(slices.Values(instances))}
	switch {
	case len(instances) == 0:
		return nil, fmt.Errorf("%w: shard: no instances", driver.ErrInvalid)
	case o.instances[0] == "":
		return nil, fmt.Errorf("%w: shard: an instance has no name", driver.ErrInvalid)
	case len(slices.Compact(slices.Clone(o.instances))) < len(instances):
		return nil, fmt.Errorf("%w: shard: an instance is given twice: %q", driver.ErrInvalid, o.instances)
	case self != "" && !slices.Contains(instances, self):
		return nil, fmt.Errorf("%w: shard: this instance, %q, is none of %q", driver.ErrInvalid, self, o.instances)
	}
	for _, name := range o.instances {
		o.seeds = append(o.seeds, hash(name))
	}
	return o, nil
}

// Of is the instance that has key.
func (o *Router) Of(key string) string { return o.instances[pick(o.seeds, key)] }

// Mine reports whether this instance has key.
func (o *Router) Mine(key string) bool { return o.self != "" && o.Of(key) == o.self }

// Do calls f while no other Do of this Router runs for key. For a key of another instance
// it answers ErrElsewhere and does not call f: pass the request on to Of(key). If ctx ends
// while others have the key it answers the context's error. f's error is passed on.
func (o *Router) Do(ctx context.Context, key string, f func(context.Context) error) error {
	if !o.Mine(key) {
		return fmt.Errorf("%w: %q has %s", ErrElsewhere, o.Of(key), driver.Quote(key))
	}
	leave, err := o.turns.Enter(ctx, key)
	if err != nil {
		return fmt.Errorf("shard: waiting for key %s: %w", driver.Quote(key), err)
	}
	defer leave()
	return f(ctx)
}
