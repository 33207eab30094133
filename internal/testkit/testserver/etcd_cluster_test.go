package testserver

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
)

type etcdKey struct {
	Key   []byte `json:"key"`
	Value []byte `json:"value,omitempty"`
}

// put stores a key by a member, which needs a leader for it.
func (s *EtcdServer) put(key string) error {
	token, err := s.login(startTimeout)
	if err != nil {
		return err
	}
	return s.post(startTimeout, "/v3/kv/put", token, etcdKey{[]byte(key), []byte("v")}, new(any))
}

func TestEtcdClusterReplacesItsLeader(t *testing.T) {
	g := EtcdCluster(t, EtcdOptions{})
	if n := len(strings.Split(g.URL(), ",")); n != 3 || len(g.Followers()) != 2 {
		t.Errorf("%s has %d addresses; %d followers", g.URL(), n, len(g.Followers()))
	}
	old := g.Leader()
	old.Kill()
	now := g.AwaitLeader(old)
	if err := now.put("a"); err != nil || now == old {
		t.Errorf("the new leader: %v, it is the old: %v", err, now == old)
	}
	old.Start()
	if err := old.put("b"); err != nil {
		t.Errorf("a member that is back: %v", err)
	}
	now.Pause()
	if third := g.AwaitLeader(now); third == now {
		t.Error("a paused leader leads on")
	}
	now.Resume()
}

func TestLongEtcdClusterInTwoParts(t *testing.T) {
	g := EtcdCluster(t, EtcdOptions{})
	for _, who := range []string{"leader", "follower"} {
		cut := g.Leader()
		if who == "follower" {
			cut = g.Followers()[0]
		}
		g.Isolate(cut)
		now := g.AwaitLeader(cut)
		for _, s := range g.without(cut) {
			if err := s.put("k"); err != nil {
				t.Errorf("isolated %s: one of the others: %v", who, err)
			}
		}
		if err := await(func() error {
			if cut.put("k") == nil {
				return fmt.Errorf("it takes requests: %w", errNotYet)
			}
			return nil
		}); err != nil {
			t.Errorf("isolated %s: %v", who, err)
		}
		if who == "leader" && now == cut {
			t.Error("who is alone leads the others")
		}
		g.Heal()
		if err := await(func() error { return cut.put("k") }); err != nil {
			t.Errorf("healed %s: %v", who, err)
		}
	}
}

func TestLongSharedEtcdClusterIsOne(t *testing.T) {
	if a, b := SharedEtcdCluster(t), SharedEtcdCluster(t); a.URL() != b.URL() {
		t.Errorf("two shared clusters: %s, %s", a.URL(), b.URL())
	}
}

func TestEtcdWithUsersAndTLS(t *testing.T) {
	s := Etcd(t, EtcdOptions{Password: "s3cret", TLS: true})
	cert, key := s.Files()
	if u := s.URL(); !strings.HasPrefix(u, "etcds://root:s3cret@"+s.Addr()+"?") || cert == "" || key == "" {
		t.Errorf("URL %s, files %q, %q", u, cert, key)
	}
	if err := s.post(startTimeout, "/v3/kv/put", "", etcdKey{[]byte("k"), nil}, new(any)); err == nil {
		t.Error("anybody may write")
	}
	if err := s.put("k"); err != nil {
		t.Errorf("root: %v", err)
	}
	u := s.AddUser("ann", "x", EtcdGrant{Prefix: "ann/", Read: true, Write: true}, EtcdGrant{Prefix: "all/", Read: true})
	if !strings.HasPrefix(u, "etcds://ann:x@") {
		t.Errorf("URL %s", u)
	}
	var login struct{ Token string }
	if err := s.post(startTimeout, "/v3/auth/authenticate", "", body{"name": "ann", "password": "x"}, &login); err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]bool{"ann/k": true, "ann": false, "ann0": false, "all/k": false} {
		if err := s.post(startTimeout, "/v3/kv/put", login.Token, etcdKey{[]byte(key), nil}, new(any)); (err == nil) != want {
			t.Errorf("ann writes %s: %v", key, err)
		}
	}
	if err := s.post(startTimeout, "/v3/kv/range", login.Token, etcdKey{Key: []byte("all/k")}, new(any)); err != nil {
		t.Errorf("ann reads: %v", err)
	}
	s.Kill()
	s.Start()
	if err := s.put("k"); err != nil {
		t.Errorf("after a restart: %v", err)
	}
}

func TestSuccessorOfAPrefix(t *testing.T) {
	for prefix, want := range map[string]string{"": "\x00", "a": "b", "a/": "a0", "a\xff": "b", "\xff": "\x00"} {
		if got := string(successor([]byte(prefix))); got != want {
			t.Errorf("successor of %q is %q, want %q", prefix, got, want)
		}
	}
}

// answering returns an etcd that answers a call with each status in turn, and the last one from then on.
func answering(t *testing.T, text string, statuses ...int) *EtcdServer {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(statuses[0])
		w.Write([]byte(text))
		if len(statuses) > 1 {
			statuses = statuses[1:]
		}
	}))
	t.Cleanup(srv.Close)
	_, port, err := net.SplitHostPort(srv.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	s := &EtcdServer{Process: &Process{}}
	if s.port, err = strconv.Atoi(port); err != nil {
		t.Fatal(err)
	}
	return s
}

func TestUnansweredChangeIsRepeated(t *testing.T) {
	add := call{"user/add", body{"name": "ann"}}
	const exists = `{"error":"etcdserver: user name already exists"}`
	if err := answering(t, exists, http.StatusServiceUnavailable, http.StatusBadRequest).change("", add); err != nil {
		t.Errorf("the first attempt had succeeded: %v", err)
	}
	if err := answering(t, exists, http.StatusBadRequest).change("", add); err == nil || !strings.Contains(err.Error(), "already exists") {
		t.Errorf("the first answer: %v", err)
	}
	if err := answering(t, "{}", http.StatusServiceUnavailable, http.StatusOK).change("", add); err != nil {
		t.Errorf("the second attempt succeeds: %v", err)
	}
}
