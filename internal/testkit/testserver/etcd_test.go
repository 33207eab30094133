package testserver

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
)

// etcdPost speaks to the JSON gateway of etcd, in which keys and values are base64.
func etcdPost(s *EtcdServer, path, body string) (string, error) {
	resp, err := http.Post("http://"+s.Addr()+path, "application/json", strings.NewReader(body))
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	var b strings.Builder
	err = resp.Write(&b)
	return b.String(), err
}

func TestEtcdKeepsItsDataOverAKill(t *testing.T) {
	s := Etcd(t, EtcdOptions{})
	addr := s.Addr()
	expect.Equal(t, s.URL(), "etcd://"+addr, "URL")
	must.Get(etcdPost(s, "/v3/kv/put", `{"key":"aw==","value":"dg=="}`))(t)
	s.Kill()
	if err := s.healthy(); err == nil {
		t.Fatal("a killed server is healthy")
	}
	s.Start()
	if s.Addr() != addr {
		t.Errorf("started again at %s, was at %s", s.Addr(), addr)
	}
	if got, err := etcdPost(s, "/v3/kv/range", `{"key":"aw=="}`); err != nil || !strings.Contains(got, `"dg=="`) {
		t.Errorf("after the restart: %v, %s", err, got)
	}
}

func TestEtcdIsStoppedPausedAndEnded(t *testing.T) {
	var s *EtcdServer
	t.Run("inner", func(t *testing.T) {
		s = Etcd(t, EtcdOptions{Args: []string{"--max-txn-ops", "200"}})
		s.Stop()
		s.Start()
		s.Pause()
		if err := s.healthy(); err == nil {
			t.Error("a paused server is healthy")
		}
		s.Resume()
		expect.OK(t, s.awaitReady(t.Context()))
	})
	if err := s.healthy(); err == nil {
		t.Error("the server outlived its test")
	}
	if _, err := os.Stat(s.Dir()); !os.IsNotExist(err) {
		t.Errorf("its folder outlived the test: %v", err)
	}
}

func TestSharedEtcdIsOneAndGrantsShortLeases(t *testing.T) {
	s := SharedEtcd(t)
	if other := SharedEtcd(t); s != other {
		t.Fatalf("two shared servers: %s, %s", s.Addr(), other.Addr())
	}
	if got, err := etcdPost(s, "/v3/lease/grant", `{"TTL":1}`); err != nil || !strings.Contains(got, `"TTL":"1"`) {
		t.Errorf("a lease of a second: %v, %s", err, got)
	}
}

func TestForeignEtcdOnThePort(t *testing.T) {
	other, s := Etcd(t, EtcdOptions{}), newEtcd(t, EtcdOptions{}, "etcd")
	t.Cleanup(s.end)
	s.port = other.port
	var err error
	must.OK(t, await(func() error { // it may be slow to answer
		if err = s.healthy(); err == nil || strings.Contains(err.Error(), "another server") {
			return nil
		}
		return err
	}))
	if err == nil {
		t.Error("another server's port is healthy")
	}
}

func TestLongCurrentEtcd(t *testing.T) {
	s := SharedCurrentEtcd(t)
	if other := SharedCurrentEtcd(t); s != other {
		t.Fatalf("two shared servers: %s, %s", s.Addr(), other.Addr())
	}
	var v struct{ Etcdserver string }
	if err := s.get("/version", &v); err != nil || v.Etcdserver <= "3.5" {
		t.Errorf("version %q: %v", v.Etcdserver, err)
	}
	for current, want := range map[bool]string{false: "etcdctl version: 3.", true: "etcdctl version: " + v.Etcdserver} {
		out, err := exec.Command(Etcdctl(t, current), "version").Output()
		if err != nil || !strings.HasPrefix(string(out), want) {
			t.Errorf("etcdctl says %q, %v, want %q", out, err, want)
		}
	}
}

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
	// On a busy machine there may be another election meanwhile.
	if err := await(func() error { return now.put("a") }); err != nil || now == old {
		t.Errorf("the new leader: %v, it is the old: %v", err, now == old)
	}
	old.Start()
	expect.OK(t, await(func() error { return old.put("b") }), "a member that is back")
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
			if err := await(func() error { return s.put("k") }); err != nil {
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
		expect.OK(t, await(func() error { return cut.put("k") }), "healed", who)
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
	expect.OK(t, s.put("k"), "root")
	u := s.AddUser("ann", "x", EtcdGrant{Prefix: "ann/", Read: true, Write: true}, EtcdGrant{Prefix: "all/", Read: true})
	if !strings.HasPrefix(u, "etcds://ann:x@") {
		t.Errorf("URL %s", u)
	}
	var login struct{ Token string }
	must.OK(t, s.post(startTimeout, "/v3/auth/authenticate", "", body{"name": "ann", "password": "x"}, &login))
	for key, want := range map[string]bool{"ann/k": true, "ann": false, "ann0": false, "all/k": false} {
		if err := s.post(startTimeout, "/v3/kv/put", login.Token, etcdKey{[]byte(key), nil}, new(any)); (err == nil) != want {
			t.Errorf("ann writes %s: %v", key, err)
		}
	}
	expect.OK(t, s.post(startTimeout, "/v3/kv/range", login.Token, etcdKey{Key: []byte("all/k")}, new(any)), "ann reads")
	s.Kill()
	s.Start()
	expect.OK(t, s.put("k"), "after a restart")
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
	must.OK(t, err)
	s := &EtcdServer{Process: &Process{}}
	s.port = must.Get(strconv.Atoi(port))(t)
	return s
}

func TestUnansweredChangeIsRepeated(t *testing.T) {
	add := call{"user/add", body{"name": "ann"}}
	const exists = `{"error":"etcdserver: user name already exists"}`
	expect.OK(t, answering(t, exists, http.StatusServiceUnavailable, http.StatusBadRequest).change("", add), "the first attempt had succeeded")
	if err := answering(t, exists, http.StatusBadRequest).change("", add); err == nil || !strings.Contains(err.Error(), "already exists") {
		t.Errorf("the first answer: %v", err)
	}
	expect.OK(t, answering(t, "{}", http.StatusServiceUnavailable, http.StatusOK).change("", add), "the second attempt succeeds")
}
