package testserver

import (
	"slices"
	"testing"
)

// ensemble is servers of which one leads; a leader that dies is replaced.
type ensemble[S interface {
	comparable
	Addr() string
	process() *Process
}] struct {
	tb      testing.TB
	members []S
	elected func(old S) (S, error) // the leader of the others, if it is not old
}

// Members are the servers, in the order in which they were started.
func (g *ensemble[S]) Members() []S { return g.members }

// Addrs are where clients reach the members.
func (g *ensemble[S]) Addrs() []string {
	var addrs []string
	for _, s := range g.members {
		addrs = append(addrs, s.Addr())
	}
	return addrs
}

func (g *ensemble[S]) processes() (all []*Process) {
	for _, s := range g.members {
		all = append(all, s.process())
	}
	return all
}

// Leader is the member that a majority follows.
func (g *ensemble[S]) Leader() S {
	g.tb.Helper()
	var nobody S
	return g.AwaitLeader(nobody)
}

// Followers are the others.
func (g *ensemble[S]) Followers() []S {
	g.tb.Helper()
	return g.without(g.Leader())
}

// AwaitLeader returns the new leader once the others have one that is not old, and
// another member follows it.
func (g *ensemble[S]) AwaitLeader(old S) S {
	g.tb.Helper()
	var leader S
	err := await(func() (err error) {
		leader, err = g.elected(old)
		return err
	})
	if err != nil {
		g.tb.Fatalf("testserver: no leader: %v", err)
	}
	return leader
}

func (g *ensemble[S]) without(s S) []S {
	return slices.DeleteFunc(slices.Clone(g.members), func(m S) bool { return m == s })
}
