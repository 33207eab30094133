package testserver

import (
	"strings"
	"testing"
	"time"
)

func TestZooKeeperAnswersAtOnce(t *testing.T) {
	t.Parallel()
	start := time.Now()
	srv := ZooKeeper(t, ZooKeeperOptions{MinSession: time.Second, MaxSession: 3 * time.Second})
	t.Logf("started in %v", time.Since(start))
	if got, err := srv.Ask("ruok"); got != "imok" {
		t.Fatalf("ruok: %q, %v", got, err)
	}
	conf, err := srv.Ask("conf")
	for _, want := range []string{"tickTime=200\n", "minSessionTimeout=1000\n", "maxSessionTimeout=3000\n"} {
		if !strings.Contains(conf, want) {
			t.Errorf("conf lacks %q: %s, %v", want, conf, err)
		}
	}
	if want := "zk://" + srv.Addr(); srv.URL() != want {
		t.Errorf("URL %q, want %q", srv.URL(), want)
	}
}

func TestZooKeeperIsKilledStartedAndPaused(t *testing.T) {
	t.Parallel()
	srv := ZooKeeper(t, ZooKeeperOptions{})
	srv.Kill()
	if got, err := srv.Ask("ruok"); err == nil {
		t.Fatalf("a killed server answers %q", got)
	}
	srv.Start()
	if mode, err := srv.asked("srvr", "Mode:"); mode != "standalone" {
		t.Fatalf("after Start at the old address: %q, %v", mode, err)
	}
	srv.Pause()
	srv.Resume()
	if err := srv.awaitReady(); err != nil {
		t.Fatal(err)
	}
	srv.Stop()
	srv.Start()
}

func TestSharedZooKeeperIsOne(t *testing.T) {
	t.Parallel()
	if a, b := SharedZooKeeper(t), SharedZooKeeper(t); a != b {
		t.Fatalf("two shared servers: %s, %s", a.Addr(), b.Addr())
	}
}
