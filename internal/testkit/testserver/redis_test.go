package testserver

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
)

func TestMain(m *testing.M) { os.Exit(Run(m)) }

// ask sends one inline command on a connection of its own.
func ask(addr, command string) (string, error) { return askWithin(time.Minute, addr, command) }

func askWithin(timeout time.Duration, addr, command string) (string, error) {
	c, err := net.DialTimeout("tcp", addr, timeout)
	if err != nil {
		return "", err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(timeout))
	fmt.Fprintf(c, "%s\r\n", command)
	line, err := bufio.NewReader(c).ReadString('\n')
	return strings.TrimSpace(line), err
}

func TestRedisAnswersAtOnce(t *testing.T) {
	srv := Redis(t)
	if got, err := ask(srv.Addr(), "PING"); got != "+PONG" {
		t.Fatalf("PING: %q, %v", got, err)
	}
	expect.Equal(t, srv.URL(), "redis://"+srv.Addr(), "URL")
}

func TestRedisTakesOptions(t *testing.T) {
	srv := Redis(t, "--requirepass", "secret")
	if got, _ := ask(srv.Addr(), "PING"); !strings.HasPrefix(got, "-NOAUTH") {
		t.Fatalf("PING without password: %q", got)
	}
}

func TestRedisIsKilledAndStartedAgain(t *testing.T) {
	srv := Redis(t)
	addr := srv.Addr()
	srv.Kill()
	if got, err := ask(addr, "PING"); err == nil {
		t.Fatalf("a killed server answers %q", got)
	}
	srv.Start()
	if got, err := ask(addr, "PING"); got != "+PONG" {
		t.Fatalf("after Start at the old address: %q, %v", got, err)
	}
	srv.Stop()
	if got, err := ask(addr, "PING"); err == nil {
		t.Fatalf("a stopped server answers %q", got)
	}
	srv.Start()
}

func TestRedisIsPausedAndResumed(t *testing.T) {
	srv := Redis(t)
	srv.Pause()
	if got, err := askWithin(300*time.Millisecond, srv.Addr(), "PING"); err == nil {
		t.Fatalf("a paused server answers %q", got)
	}
	srv.Resume()
	must.OK(t, srv.awaitReady(t.Context()))
}

func TestSharedRedisIsOne(t *testing.T) {
	if a, b := SharedRedis(t), SharedRedis(t); a != b {
		t.Fatalf("two shared servers: %s, %s", a.Addr(), b.Addr())
	}
}

func TestServerEndsWithItsTest(t *testing.T) {
	var addr, dir string
	t.Run("inner", func(t *testing.T) {
		srv := Redis(t)
		addr, dir = srv.Addr(), srv.Dir()
	})
	if got, err := ask(addr, "PING"); err == nil {
		t.Fatalf("the server outlived its test: %q", got)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("its folder outlived the test: %v", err)
	}
}

// childEnv makes a run of the test binary start a server, say where, and hang.
const childEnv = "TESTSERVER_CHILD"

func TestServerDiesWithTheTestProcess(t *testing.T) {
	if os.Getenv(childEnv) != "" {
		fmt.Println("addr", SharedRedis(t).Addr())
		select {}
	}
	if dieWithParent() == nil {
		t.Skip("this system can't tie a child's life to its parent's")
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestServerDiesWithTheTestProcess$")
	cmd.Env = append(os.Environ(), childEnv+"=1", "TMPDIR="+t.TempDir())
	out := must.Get(cmd.StdoutPipe())(t)
	must.OK(t, cmd.Start())
	var addr string
	for s := bufio.NewScanner(out); s.Scan(); {
		if a, ok := strings.CutPrefix(s.Text(), "addr "); ok {
			addr = a
			break
		}
	}
	if got, err := ask(addr, "PING"); got != "+PONG" {
		t.Fatalf("before the kill: %q, %v", got, err)
	}
	cmd.Process.Kill()
	cmd.Wait()
	if err := await(func() error {
		if got, err := ask(addr, "PING"); err == nil {
			return fmt.Errorf("it answers %q: %w", got, errNotYet)
		}
		return nil
	}); err != nil {
		t.Fatalf("the server outlived the killed test process: %v", err)
	}
}

func TestRequired(t *testing.T) {
	for _, c := range []struct {
		ci, require string
		want        bool
	}{
		{"", "", false}, {"true", "", true}, {"", "all", true},
		{"", "etcd,redis", true}, {"", "etcd", false}, {"false", "", false},
	} {
		t.Setenv("CI", c.ci)
		t.Setenv("DISTLOCK_TEST_REQUIRE", c.require)
		if got := required("redis"); got != c.want {
			t.Errorf("CI=%q DISTLOCK_TEST_REQUIRE=%q: required %v, want %v", c.ci, c.require, got, c.want)
		}
	}
}

func TestMissingProgramSaysWhatToDo(t *testing.T) {
	t.Setenv("TESTSERVER_NONE", "/nowhere/none-server")
	p := &program{name: "none-server", env: "TESTSERVER_NONE"}
	if _, err := p.find(); err == nil {
		t.Error("a program that is not there was found")
	}
}

func TestForeignServerOnThePort(t *testing.T) {
	other, s := Redis(t), newRedis(t, "redis", redisServer)
	t.Cleanup(s.end)
	s.port, s.args = other.port, []string{"--port", strconv.Itoa(other.port), "--bind", "127.0.0.1", "--dir", s.dir}
	if err := s.start(); err == nil || !strings.Contains(err.Error(), "ended at once") {
		t.Errorf("started on a port that is taken: %v", err)
	}
}

func asked(t *testing.T, s *RedisServer, args ...string) any {
	t.Helper()
	reply, err := s.Do(args...)
	must.OK(t, err, args)
	return reply
}

// awaitCopies returns when so many replicas have all that a master has written so far. WAIT would know of the writes of its own
// connection only.
func awaitCopies(t *testing.T, master *RedisServer, replicas int) {
	t.Helper()
	state := func() (written int64, copied []int64) {
		role, _ := asked(t, master, "ROLE").([]any)
		if len(role) < 3 {
			t.Fatalf("ROLE answers %v", role)
		}
		written, _ = role[1].(int64)
		list, _ := role[2].([]any)
		for _, r := range list {
			offset, _ := strconv.ParseInt(fmt.Sprint(r.([]any)[2]), 10, 64)
			copied = append(copied, offset)
		}
		return written, copied
	}
	wanted, _ := state()
	must.OK(t, await(func() error {
		_, copied := state()
		have := slices.DeleteFunc(slices.Clone(copied), func(offset int64) bool { return offset < wanted })
		if len(have) < replicas {
			return fmt.Errorf("the replicas have %v of %d: %w", copied, wanted, errNotYet)
		}
		return nil
	}))
}

// logins are the ways in which a deployment asks who one is.
var logins = map[string]RedisOptions{
	"open":     {},
	"password": {Password: "s3cret", SentinelPassword: "sentinels"},
	"user tls": {User: "bob", Password: "s3cret", SentinelPassword: "sentinels", TLS: true},
}

func TestSentinelFailsOver(t *testing.T) {
	t.Parallel()
	sentinelFailsOver(t, logins["open"])
}

func TestLongSentinelFailsOver(t *testing.T) { withLogins(t, sentinelFailsOver) }

// withLogins runs a test for each way of logging in.
func withLogins(t *testing.T, test func(*testing.T, RedisOptions)) {
	for _, name := range []string{"password", "user tls"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, logins[name])
		})
	}
}

func sentinelFailsOver(t *testing.T, o RedisOptions) {
	start := time.Now()
	g := RedisSentinel(t, o)
	t.Logf("started in %v", time.Since(start))
	old := g.Master()
	if old != g.Members()[0] || len(g.Followers()) != 2 || len(g.Addrs()) != 3 {
		t.Errorf("master %s, replicas %v, sentinels %v", old.Addr(), g.Followers(), g.Addrs())
	}
	asked(t, old, "SET", "k", "v")
	awaitCopies(t, old, 2)
	start = time.Now()
	old.Kill()
	now := g.AwaitFailover(old)
	t.Logf("failover in %v", time.Since(start))
	if now == old || g.Master() != now {
		t.Errorf("after the failover %s is the master, was %s", now.Addr(), old.Addr())
	}
	if v := asked(t, now, "GET", "k"); v != "v" {
		t.Errorf("GET k: %v", v)
	}
	asked(t, now, "SET", "k", "w")
}

func TestLongSentinelFailsOverInPeace(t *testing.T) {
	t.Parallel()
	g := RedisSentinel(t, RedisOptions{})
	old := g.Master()
	if now := g.Failover(); now == old {
		t.Errorf("%s stays the master", now.Addr())
	}
}

func TestCluster(t *testing.T) {
	t.Parallel()
	cluster(t, logins["open"])
}

func TestLongCluster(t *testing.T) { withLogins(t, cluster) }

func cluster(t *testing.T, o RedisOptions) {
	start := time.Now()
	g := RedisCluster(t, o)
	t.Logf("started in %v", time.Since(start))
	clusterMovesSlots(t, g)
	clusterFailsOver(t, g)
}

func clusterMovesSlots(t *testing.T, g *RedisClusterGroup) {
	from := g.NodeOf("{k}1")
	to := g.Masters()[0]
	if to == from {
		to = g.Masters()[1]
	}
	asked(t, from, "MSET", "{k}1", "a", "{k}2", "b", "{k}3", "c")
	m := g.StartMove(g.Slot("k"), to)
	m.Keys("{k}1")
	for want, args := range map[string][]string{
		"ASK": {"GET", "{k}1"}, "TRYAGAIN": {"MGET", "{k}1", "{k}2"},
	} {
		if _, err := from.Do(args...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v half-way: %v, want %s", args, err, want)
		}
	}
	expect.Equal(t, asked(t, from, "GET", "{k}2"), "b", "a key that hasn't moved")
	m.Finish()
	if g.NodeOf("{k}1") != to || asked(t, to, "GET", "{k}2") != "b" {
		t.Errorf("the slot is at %s, want %s", g.NodeOf("{k}1").Addr(), to.Addr())
	}
	if _, err := from.Do("GET", "{k}2"); err == nil || !strings.Contains(err.Error(), "MOVED") {
		t.Errorf("the old owner says %v", err)
	}
	g.StartMove(g.Slot("k"), from).Cancel()
	if v := asked(t, to, "GET", "{k}9"); v != nil {
		t.Errorf("a cancelled move goes on: %v", v)
	}
}

func clusterFailsOver(t *testing.T, g *RedisClusterGroup) {
	old := g.NodeOf("k")
	asked(t, old, "SET", "k", "v")
	awaitCopies(t, old, 1)
	start := time.Now()
	old.Kill()
	now := g.AwaitFailover(old)
	t.Logf("failover in %v", time.Since(start))
	if v := asked(t, now, "GET", "k"); v != "v" || g.NodeOf("k") != now {
		t.Errorf("k is %v at %s, want v at %s", v, g.NodeOf("k").Addr(), now.Addr())
	}
	old.Start()
	g.AwaitReady()
	if back := g.Failover(now); back != old || asked(t, old, "GET", "k") != "v" {
		t.Errorf("%s took over from %s", back.Addr(), now.Addr())
	}
}

func TestLongSharedGroups(t *testing.T) {
	t.Parallel()
	if a, b := SharedRedisCluster(t), SharedRedisCluster(t); a.Members()[0] != b.Members()[0] {
		t.Error("two shared clusters")
	}
	if a, b := SharedRedisSentinel(t), SharedRedisSentinel(t); a.Master() != b.Master() {
		t.Error("two shared sentinel deployments")
	}
}
