package testserver

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"
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
	if want := "redis://" + srv.Addr(); srv.URL() != want {
		t.Errorf("URL %q, want %q", srv.URL(), want)
	}
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
	if err := srv.awaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
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
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
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
