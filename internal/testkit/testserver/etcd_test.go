package testserver

import (
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
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
	if s.URL() != "etcd://"+addr {
		t.Errorf("URL %q", s.URL())
	}
	if _, err := etcdPost(s, "/v3/kv/put", `{"key":"aw==","value":"dg=="}`); err != nil {
		t.Fatal(err)
	}
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
		if err := s.awaitReady(t.Context()); err != nil {
			t.Error(err)
		}
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
	if err := s.healthy(); err == nil || !strings.Contains(err.Error(), "another server") {
		t.Errorf("another's port: %v", err)
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
