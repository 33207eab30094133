package testserver

import (
	"crypto/tls"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
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
	expect.Equal(t, srv.URL(), "zk://"+srv.Addr(), "URL")
}

func TestZooKeeperIsKilledStartedAndPaused(t *testing.T) {
	t.Parallel()
	srv := ZooKeeper(t, ZooKeeperOptions{})
	srv.Kill()
	if got, err := srv.Ask("ruok"); err == nil {
		t.Fatalf("a killed server answers %q", got)
	}
	srv.Start()
	if answer, err := srv.Ask("srvr"); !strings.Contains(answer, "Mode: standalone") {
		t.Fatalf("after Start at the old address: %q, %v", answer, err)
	}
	srv.Pause()
	srv.Resume()
	must.OK(t, srv.awaitReady(t.Context()))
	srv.Stop()
	srv.Start()
}

func TestZooKeeperSpeaksTLS(t *testing.T) {
	t.Parallel()
	srv := ZooKeeper(t, ZooKeeperOptions{TLS: true})
	if !strings.HasPrefix(srv.URL(), "zks://"+srv.SecureAddr()+"?ca=") {
		t.Errorf("URL %q", srv.URL())
	}
	c := must.Get(tls.Dial("tcp", srv.SecureAddr(), srv.TLSConfig()))(t)
	defer c.Close()
	fmt.Fprint(c, "ruok")
	if answer, err := io.ReadAll(c); string(answer) != "imok" {
		t.Errorf("ruok: %q, %v", answer, err)
	}
}

func TestSharedZooKeeperIsOne(t *testing.T) {
	t.Parallel()
	if a, b := SharedZooKeeper(t), SharedZooKeeper(t); a != b {
		t.Fatalf("two shared servers: %s, %s", a.Addr(), b.Addr())
	}
}

func TestZooKeeperClusterReplacesItsLeader(t *testing.T) {
	t.Parallel()
	start := time.Now()
	g := ZooKeeperCluster(t, ZooKeeperOptions{})
	t.Logf("started in %v", time.Since(start))
	old := g.Leader()
	start = time.Now()
	old.Kill()
	now := g.AwaitLeader(old)
	t.Logf("a killed one is replaced in %v", time.Since(start))
	old.Start()
	g.AwaitReady()
	start = time.Now()
	now.Pause()
	third := g.AwaitLeader(now)
	t.Logf("a silent one is replaced in %v", time.Since(start))
	if now == old || third == now {
		t.Errorf("leaders %s, %s, %s", old.Addr(), now.Addr(), third.Addr())
	}
	now.Resume()
	g.AwaitReady()
}

func TestLongZooKeeperClusterComesApart(t *testing.T) {
	t.Parallel()
	g := ZooKeeperCluster(t, ZooKeeperOptions{})
	old := g.Leader()
	g.Isolate(old)
	now := g.AwaitLeader(old)
	if err := await(func() error {
		if mode, _ := old.asked("srvr", "Mode:"); mode != "" {
			return errNotYet
		}
		return nil
	}); err != nil {
		t.Errorf("%s still serves, alone", old.Addr())
	}
	g.Heal()
	g.AwaitReady()
	t.Logf("%s leads, and did before the others were back: %v", g.Leader().Addr(), g.Leader() == now) // a busy machine may elect again
}
