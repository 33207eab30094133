package fenceredis

import (
	"context"
	_ "embed"
	"fmt"
	"strconv"
	"strings"

	"github.com/distlock/distlock/fence"
)

// Eval runs a Lua script in Redis and returns its answer as the usual clients do: an
// int64, a string, nil, or a []any of these. It may use EVALSHA. The package's comment has
// it for go-redis and rueidis, in a line each.
type Eval func(ctx context.Context, script string, keys, args []string) (any, error)

// Guard checks fences in Redis. It is safe for concurrent use if its Eval is.
type Guard struct{ eval Eval }

// New makes a Guard that runs its scripts with eval.
func New(eval Eval) *Guard { return &Guard{eval} }

//go:embed guard.lua
var guardScript string

// Enter presents a fence for a resource, before its first read. Smaller ones are refused
// from then on: with a *fence.StaleError. Present the fence again with each write, by Run:
// Enter alone keeps nobody out who comes later.
//
// ErrInvalid: fence 0, or a resource without a Key. Other errors are Redis's; after those
// that leave the outcome open the same call may be repeated.
func (g *Guard) Enter(ctx context.Context, resource string, f uint64) error {
	_, err := g.Run(ctx, resource, f, "", nil, nil)
	return err
}

// Run presents a fence and, if it is let in, runs a script in the same step, with KEYS and
// ARGV as given. What it returns is Run's answer; a table of errors is an error. The
// script is the body of a function: it may return, and has no shebang line. In a cluster
// all keys must be in the slot of the resource, see Key.
//
// Errors are those of Enter; with ErrStale the script has not run. Clients may send a
// script again whose answer was lost.
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

// read takes the script's answer apart: {"in", answer} or {"stale", fence}.
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
