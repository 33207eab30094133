package testserver

import (
	"errors"
	"fmt"
	"testing"
	"time"
)

// group is servers that belong together.
type group struct {
	tb      testing.TB
	options RedisOptions
	nodes   []*RedisServer // those that keep data
}

// add makes a server of the group and starts it; more returns its further options.
func (g *group) add(more func(s *RedisServer) ([]string, error)) (*RedisServer, error) {
	s := newRedis(g.tb)
	if err := g.options.start(s, more); err != nil {
		s.end()
		return nil, err
	}
	g.nodes = append(g.nodes, s)
	return s, nil
}

// Nodes are the servers that keep data, in the order in which they were started.
func (g *group) Nodes() []*RedisServer { return g.nodes }

// node is the one that others know by an address.
func (g *group) node(public string) *RedisServer {
	for _, s := range g.nodes {
		if s.Public() == public {
			return s
		}
	}
	return nil
}

func (g *group) end() {
	for _, s := range g.nodes {
		s.end()
	}
}

// processes are those of the nodes.
func (g *group) processes() (all []*Process) {
	for _, s := range g.nodes {
		all = append(all, s.Process)
	}
	return all
}

// await returns when cond does without an error, and fails the test if that takes too
// long, or if one of the processes that it needs has ended.
func (g *group) await(what string, cond func() error, needs ...*Process) {
	g.tb.Helper()
	if err := await(cond, needs...); err != nil {
		g.tb.Fatalf("testserver: %s: %v", what, err)
	}
}

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

// must sends a command that has to succeed.
func (g *group) must(s *RedisServer, args ...string) any {
	g.tb.Helper()
	reply, err := s.Do(args...)
	if err != nil {
		g.tb.Fatalf("testserver: %v: %v", args, err)
	}
	return reply
}

// eachDo sends a list of commands, each to a server.
func eachDo(commands []command) error {
	for _, c := range commands {
		if _, err := c.to.Do(c.args...); err != nil {
			return fmt.Errorf("%v: %w", c.args, err)
		}
	}
	return nil
}

type command struct {
	to   *RedisServer
	args []string
}

func to(s *RedisServer, args ...string) command { return command{s, args} }

var errNotYet = errors.New("not yet")

// role is what ROLE answers: "master", or "slave" and the state of its link.
func (s *RedisServer) role() (role, link string, err error) {
	reply, err := s.poll("ROLE")
	if err != nil {
		return "", "", err
	}
	list, _ := reply.([]any)
	if len(list) == 0 {
		return "", "", fmt.Errorf("ROLE answers %v", reply)
	}
	role, _ = list[0].(string)
	if role == "slave" && len(list) > 3 {
		link, _ = list[3].(string)
	}
	return role, link, nil
}

// following succeeds if the server is a replica that has all that its master has.
func (s *RedisServer) following() error {
	role, link, err := s.role()
	if err == nil && (role != "slave" || link != "connected") {
		err = fmt.Errorf("%s is %s %s: %w", s.Addr(), role, link, errNotYet)
	}
	return err
}
