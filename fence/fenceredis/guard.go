// Package fenceredis checks fencing tokens in Redis, in one step with the commands that use the data.
// It works with any client:
//
//	guard := fenceredis.New(func(ctx context.Context, script string, keys, args []string) (any, error) {
//		return redis.NewScript(script).Run(ctx, client, keys, args).Result() // go-redis
//	})
//	guard := fenceredis.New(func(ctx context.Context, script string, keys, args []string) (any, error) {
//		return rueidis.NewLuaScript(script).Exec(ctx, client, keys, args).ToAny() // rueidis
//	})
//
//	stock, err := guard.Run(ctx, "stock:7", f, `return redis.call('GET', KEYS[1])`, []string{"stock:7"}, nil)
//	// compute
//	_, err = guard.Run(ctx, "stock:7", f, `redis.call('SET', KEYS[1], ARGV[1])`, []string{"stock:7"}, []string{"41"})
//	// errors.Is(err, fence.ErrStale): another client has held the lock since; nothing was set
//
// The greatest fence of a resource is stored in a string of its own, see Key. It has no TTL and takes
// about 100 bytes for each resource. It must not be evicted while the data exists. If Redis loses its
// memory, or its last writes at a failover, it loses guard and data together if both are in one
// server. The fences of distlock's locks then continue from the clock.
//
// # Cluster
//
// A script can use the keys of one slot only. The guard of "stock:7" is in the slot of the key
// "stock:7". To protect several keys give them one hash tag, and use the same tag in the resource:
// "{stock:7}", "{stock:7}:quantity", "{stock:7}:reserved".
//
// # Without scripts
//
// Key and Judge do the same in a transaction: WATCH and GET the guard's key, call Judge, read, then
// MULTI, SET the guard's key to the fence, write, EXEC. There is an example for go-redis.
package fenceredis

import (
	"context"
	_ "embed"
	"fmt"
	"strconv"
	"strings"

	"github.com/distlock/distlock/fence"
)

// Eval runs a Lua script in Redis and returns its result as the usual clients do: an int64, a
// string, nil, or a []any of these. It may use EVALSHA. The package comment has one line each for
// go-redis and rueidis.
type Eval func(ctx context.Context, script string, keys, args []string) (any, error)

// Guard checks fences in Redis. It is safe for concurrent use if its Eval is.
type Guard struct{ eval Eval }

// New returns a Guard that runs its scripts with eval.
func New(eval Eval) *Guard { return &Guard{eval} }

//go:embed guard.lua
var guardScript string

// Enter presents a fence for a resource, before its first read. From then on smaller ones are
// refused with a *fence.StaleError. Present the fence again with each write, by Run: Enter alone
// doesn't stop later writers.
//
// It returns ErrInvalid for fence 0 and for a resource without a Key. Other errors come from Redis;
// if the outcome is unknown the call may be repeated.
func (g *Guard) Enter(ctx context.Context, resource string, f uint64) error {
	_, err := g.Run(ctx, resource, f, "", nil, nil)
	return err
}

// Run presents a fence and, if it is accepted, runs a script in the same step, with KEYS and ARGV
// as given. It returns the script's result; an error reply is an error. The script is the body of a
// function: it may return, and has no shebang line. In a cluster all keys must be in the slot of
// the resource, see Key.
//
// Run has the errors of Enter. After ErrStale the script has not run. Clients may resend a script
// whose answer was lost.
func (g *Guard) Run(ctx context.Context, resource string, f uint64, script string, keys, args []string) (any, error) {
	key, err := Key(resource)
	if err != nil {
		return nil, err
	}
	if err := Judge(resource, f, ""); err != nil {
		return nil, err
	}
	if g == nil || g.eval == nil {
		return nil, fmt.Errorf("fenceredis: %w guard: New was given no Eval", fence.ErrInvalid)
	}
	answer, err := g.eval(ctx, strings.Replace(guardScript, "-- BODY", script, 1),
		append([]string{key}, keys...), append([]string{strconv.FormatUint(f, 10)}, args...))
	if err != nil {
		return nil, fmt.Errorf("fenceredis: %q (key %s): %w", resource, key, err)
	}
	return read(resource, f, answer)
}

// read parses the script's result: {"in", result} or {"stale", fence}.
func read(resource string, f uint64, answer any) (any, error) {
	list, ok := answer.([]any)
	if !ok || len(list) == 0 {
		return nil, fmt.Errorf("fenceredis: %w answer of Eval: %T, want a []any", fence.ErrInvalid, answer)
	}
	switch {
	case list[0] == "in" && len(list) == 1:
		return nil, nil
	case list[0] == "in":
		return list[1], nil
	}
	if err := Judge(resource, f, fmt.Sprint(list[1:]...)); err != nil {
		return nil, err
	}
	return nil, fmt.Errorf("fenceredis: %w answer of Eval: %v", fence.ErrInvalid, list)
}

// Key returns the key in which the fence of a resource is stored:
//
//	stock:7       distlock_guard:{stock:7}
//	{stock}:7     {stock}:7:distlock_guard
//
// It lies in the slot of a key with the resource's name. Key returns ErrInvalid for a name whose
// braces make that impossible, such as "a}b" or "{}", and where fence.Valid does.
func Key(resource string) (string, error) {
	if err := fence.Valid(resource, 1); err != nil {
		return "", fmt.Errorf("fenceredis: %w", err)
	}
	open := strings.IndexByte(resource, '{')
	end := strings.IndexByte(resource[open+1:], '}')
	switch {
	case open < 0 && end < 0:
		return "distlock_guard:{" + resource + "}", nil
	case open >= 0 && end > 0:
		return resource + ":distlock_guard", nil
	}
	return "", fmt.Errorf("fenceredis: %w resource %q: want a non-empty hash tag {…} or no braces", fence.ErrInvalid, resource)
}

// Judge compares a fence with the value stored in the resource's Key, or "" if there is none. It
// returns a *fence.StaleError if the fence is smaller, and ErrInvalid if the value is not a fence.
func Judge(resource string, f uint64, stored string) error {
	if err := fence.Valid(resource, f); err != nil {
		return fmt.Errorf("fenceredis: %w", err)
	}
	if stored == "" {
		return nil
	}
	seen, err := strconv.ParseUint(stored, 10, 64)
	if err != nil {
		return fmt.Errorf("fenceredis: %w guard of %q: its value %q is not a fence", fence.ErrInvalid, resource, stored)
	}
	if err := fence.Check(resource, f, seen); err != nil {
		return fmt.Errorf("fenceredis: %w", err)
	}
	return nil
}
