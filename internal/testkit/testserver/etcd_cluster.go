package testserver

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/distlock/distlock/internal/testkit/faultproxy"
)

// EtcdClusterGroup is three members of one etcd cluster. A leader that dies is replaced
// in about a second.
type EtcdClusterGroup struct {
	group[*EtcdServer]
	links []*faultproxy.Proxy // through which each member is reached by the others
}

// EtcdCluster starts a cluster of the test's own, and returns when all members have a
// leader. It takes about two seconds. No lease is shorter than a second.
func EtcdCluster(tb testing.TB, o EtcdOptions) *EtcdClusterGroup {
	tb.Helper()
	g := startThreeEtcd(tb, o, func(s *EtcdServer) *faultproxy.Proxy { return faultproxy.New(tb, loopback(s.peer)) })
	tb.Cleanup(g.end)
	return g
}

var sharedEtcdCluster shared[*EtcdClusterGroup]

// SharedEtcdCluster returns a cluster that all tests of the process use: none may stop any of
// it, or cut it in parts.
func SharedEtcdCluster(tb testing.TB) *EtcdClusterGroup {
	tb.Helper()
	direct := func(*EtcdServer) *faultproxy.Proxy { return nil }
	g := *sharedEtcdCluster.get(func() *EtcdClusterGroup { return startThreeEtcd(tb, EtcdOptions{}, direct) })
	g.tb = tb
	return &g
}

// URL returns how etcdlock.Open reaches the cluster; as EtcdServer.URL.
func (g *EtcdClusterGroup) URL() string {
	s := g.members[0]
	return s.url("root", s.options.Password, g.Addrs()[1:]...)
}

// vote returns the leader of two members at least; old has no say in it, and is not the leader.
func (g *EtcdClusterGroup) vote(old *EtcdServer) (*EtcdServer, error) {
	votes, ids := map[string]int{}, map[string]*EtcdServer{}
	for _, s := range g.without(old) {
		self, leader, err := s.leader()
		if err == nil {
			ids[self] = s
			votes[leader]++
		}
	}
	for id, n := range votes {
		if n > 1 && ids[id] != nil {
			return ids[id], nil
		}
	}
	return nil, fmt.Errorf("the members name %v: %w", votes, errNotYet)
}

// leader is whom the server takes for the leader, itself maybe.
func (s *EtcdServer) leader() (self, leader string, err error) {
	token, err := s.login(pollTimeout)
	if err != nil {
		return "", "", err
	}
	var status struct {
		Header struct {
			Member string `json:"member_id"`
		}
		Leader string
	}
	err = s.post(pollTimeout, "/v3/maintenance/status", token, body{}, &status)
	return status.Header.Member, status.Leader, err
}

// Isolate cuts a member off from the others; clients reach it as before. Heal ends it.
// A cluster is in two parts at most: another call changes which.
func (g *EtcdClusterGroup) Isolate(s *EtcdServer) {
	g.tb.Helper()
	if runtime.GOOS != "linux" {
		g.tb.Fatal("testserver: only Linux tells whose a connection is")
	}
	for i, link := range g.links {
		if g.members[i] == s {
			link.Silence()
			continue
		}
		link.Sever(s.owns)
	}
}

// Heal lets all members reach each other again.
func (g *EtcdClusterGroup) Heal() {
	for _, link := range g.links {
		link.Pass()
	}
}

func startThreeEtcd(tb testing.TB, o EtcdOptions, link func(*EtcdServer) *faultproxy.Proxy) *EtcdClusterGroup {
	tb.Helper()
	// As few elections as may be are those of a busy machine.
	o.Args = append([]string{"--heartbeat-interval", "50", "--election-timeout", "500"}, o.Args...)
	return startEtcdCluster(tb, o, 3, link)
}

// startEtcdCluster starts members; link makes the proxy in front of a member's peer port, if any.
func startEtcdCluster(tb testing.TB, o EtcdOptions, members int, link func(*EtcdServer) *faultproxy.Proxy) *EtcdClusterGroup {
	tb.Helper()
	g := &EtcdClusterGroup{}
	g.tb, g.elected = tb, g.vote
	for i := range members {
		g.members = append(g.members, newEtcd(tb, o, fmt.Sprintf("etcd%d", i)))
	}
	err := thrice(func() error { return g.start(link) })
	if err == nil {
		err = g.members[0].protect()
	}
	if err != nil {
		g.end()
		tb.Fatalf("testserver: %v", err)
	}
	return g
}

func (g *EtcdClusterGroup) start(link func(*EtcdServer) *faultproxy.Proxy) error {
	var all []string
	g.links = nil
	for _, s := range g.members {
		if err := s.settle(); err != nil {
			return err
		}
		s.public = loopback(s.peer)
		if l := link(s); l != nil {
			g.links = append(g.links, l)
			s.public = l.Addr()
		}
		all = append(all, s.name+"=http://"+s.public)
	}
	for _, s := range g.members {
		s.args = s.arguments(strings.Join(all, ","))
	}
	return startTogether(g.processes()...) // no member answers before there is a leader
}

// EtcdGrant lets a user do something with all keys that begin with Prefix.
type EtcdGrant struct {
	Prefix      string
	Read, Write bool
}

func (g EtcdGrant) kind() string {
	switch {
	case g.Read && g.Write:
		return "READWRITE"
	case g.Write:
		return "WRITE"
	}
	return "READ"
}

// AddUser makes a user who may do what is granted, and returns the URL for that user.
func (s *EtcdServer) AddUser(name, password string, grants ...EtcdGrant) string {
	s.tb.Helper()
	token, err := s.login(startTimeout)
	if err == nil {
		err = s.addUser(token, name, password, grants)
	}
	if err != nil {
		s.tb.Fatalf("testserver: user %s: %v", name, err)
	}
	return s.url(name, password)
}

type body map[string]any

func (s *EtcdServer) addUser(token, name, password string, grants []EtcdGrant) error {
	err := s.posts(token, call{"user/add", body{"name": name, "password": password}},
		call{"role/add", body{"name": name}}, call{"user/grant", body{"user": name, "role": name}})
	for _, g := range grants {
		if err == nil {
			key := []byte(g.Prefix)
			perm := body{"permType": g.kind(), "key": key, "range_end": successor(key)}
			err = s.posts(token, call{"role/grant", body{"name": name, "perm": perm}})
		}
	}
	return err
}

// successor returns the first key behind all that begin with prefix; for an empty one what
// etcd takes for the end of all.
func successor(prefix []byte) []byte {
	end := slices.Clone(prefix)
	for len(end) > 0 && end[len(end)-1] == 0xff {
		end = end[:len(end)-1]
	}
	if len(end) == 0 {
		return []byte{0}
	}
	end[len(end)-1]++
	return end
}

// Protect gives root a password: from now on no other user may do anything.
func (s *EtcdServer) Protect(password string) {
	s.tb.Helper()
	s.options.Password = password
	if err := s.protect(); err != nil {
		s.tb.Fatalf("testserver: %v", err)
	}
}

// protect lets root alone in, if there is a password.
func (s *EtcdServer) protect() error {
	if s.options.Password == "" {
		return nil
	}
	return s.posts("", call{"user/add", body{"name": "root", "password": s.options.Password}},
		call{"user/grant", body{"user": "root", "role": "root"}}, call{"enable", body{}})
}

// login returns a token that root may use for some minutes.
func (s *EtcdServer) login(timeout time.Duration) (string, error) {
	if s.options.Password == "" {
		return "", nil
	}
	var answer struct{ Token string }
	err := s.post(timeout, "/v3/auth/authenticate", "", body{"name": "root", "password": s.options.Password}, &answer)
	return answer.Token, err
}

type call struct {
	to   string
	body body
}

// posts makes calls that change who may do what, one after the other.
func (s *EtcdServer) posts(token string, calls ...call) error {
	for _, c := range calls {
		if err := s.change(token, c); err != nil {
			return err
		}
	}
	return nil
}

// change makes a call. It repeats a call whose outcome the server does not know, and which
// may have been done.
func (s *EtcdServer) change(token string, c call) error {
	deadline := time.Now().Add(startTimeout)
	for first := true; ; first = false {
		err := s.post(startTimeout, "/v3/auth/"+c.to, token, c.body, new(any))
		if err != nil && !first && strings.Contains(err.Error(), "already exists") {
			return nil
		}
		if !errors.Is(err, errNotYet) || time.Now().After(deadline) {
			return err
		}
	}
}
