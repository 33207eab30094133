package testserver

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"
)

// group is servers that belong together.
type group[S interface {
	comparable
	Addr() string
	process() *Process
}] struct {
	tb      testing.TB
	members []S
	elected func(old S) (S, error) // the leader, as long as it is not old; nil: there is none
}

// Members returns the servers, in the order in which they were started.
func (g *group[S]) Members() []S { return g.members }

// Addrs returns the place where clients reach the members.
func (g *group[S]) Addrs() []string {
	var addrs []string
	for _, s := range g.members {
		addrs = append(addrs, s.Addr())
	}
	return addrs
}

// Leader returns the member that a majority follows.
func (g *group[S]) Leader() S {
	g.tb.Helper()
	var none S
	return g.AwaitLeader(none)
}

// Followers returns the others.
func (g *group[S]) Followers() []S {
	g.tb.Helper()
	return g.without(g.Leader())
}

// AwaitLeader returns the new leader once there is one that is not old.
func (g *group[S]) AwaitLeader(old S) (leader S) {
	g.tb.Helper()
	g.await("no leader", func() (err error) {
		leader, err = g.elected(old)
		return err
	})
	return leader
}

func (g *group[S]) without(s S) []S {
	return slices.DeleteFunc(slices.Clone(g.members), func(m S) bool { return m == s })
}

func (g *group[S]) processes() (all []*Process) {
	for _, s := range g.members {
		all = append(all, s.process())
	}
	return all
}

func (g *group[S]) end() {
	for _, p := range g.processes() {
		p.end()
	}
}

// await returns when cond does without an error, and fails the test if that takes too
// long, or if one of the processes that it needs has ended.
func (g *group[S]) await(what string, cond func() error, needs ...*Process) {
	g.tb.Helper()
	if err := await(cond, needs...); err != nil {
		g.tb.Fatalf("testserver: %s: %v", what, err)
	}
}

var errNotYet = errors.New("not yet")

func await(cond func() error, needs ...*Process) error {
	deadline := time.Now().Add(startTimeout)
	for {
		err := cond()
		if err == nil || time.Now().After(deadline) {
			return err
		}
		for _, p := range needs {
			if !p.alive() {
				return fmt.Errorf("%s has ended: %w: %s", p.path, err, p.log())
			}
		}
		time.Sleep(10 * time.Millisecond)
	}
}
