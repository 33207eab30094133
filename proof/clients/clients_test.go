//go:build linux

package clients

import (
	"bufio"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/distlock/distlock"
	_ "github.com/distlock/distlock/backend/all"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/httpwire"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/locktest"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
	"github.com/distlock/distlock/proof/internal/lockserver"
	"github.com/distlock/distlock/server"
)

var eventually = locktest.Eventually

// Roles of this program as a child that is killed or stopped.
const (
	roleEnv = "DISTLOCK_CLIENTSTEST_ROLE" // serve, hold, go or naive
	urlEnv  = "DISTLOCK_CLIENTSTEST_URL"  // the backend's
	argEnv  = "DISTLOCK_CLIENTSTEST_ARG"  // the address of the server, or the name of the lock
)

func TestMain(m *testing.M) {
	if role := os.Getenv(roleEnv); role != "" {
		roles := map[string]func(url, arg string) error{"serve": lockserver.Serve, "hold": hold, "go": goProgram, "naive": naiveProgram}
		if err := roles[role](os.Getenv(urlEnv), os.Getenv(argEnv)); err != nil {
			fmt.Println("error:", err)
			os.Exit(1)
		}
		return
	}
	code := testserver.Run(m)
	stopShared()
	os.RemoveAll(classes.dir)
	os.Remove(commandPath)
	os.Exit(code)
}

// hold holds a lock until the process is killed.
func hold(url, name string) error {
	c, err := distlock.Open(context.Background(), url, &distlock.Options{TTL: 5 * time.Second})
	if err != nil {
		return err
	}
	l, err := c.Mutex(name).Lock(context.Background())
	if err != nil {
		return err
	}
	fmt.Println(l.Fence())
	select {}
}

// child starts this program in a role, and returns the first line that it prints.
func child(t *testing.T, role, url, arg string) (*exec.Cmd, string) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), roleEnv+"="+role, urlEnv+"="+url, argEnv+"="+arg)
	cmd.Stderr = os.Stderr
	out := must.Get(cmd.StdoutPipe())(t)
	must.OK(t, testserver.Spawn(cmd))
	t.Cleanup(func() { killed(cmd) })
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || strings.HasPrefix(line, "error") {
		t.Fatalf("the child says %q, %v", line, err)
	}
	return cmd, strings.TrimSpace(line)
}

func killed(cmd *exec.Cmd) {
	cmd.Process.Kill()
	cmd.Wait()
}

// serverProcess starts a server in a process of its own, and returns its URL.
func serverProcess(t *testing.T, url string) (*exec.Cmd, string) {
	t.Helper()
	cmd, addr := child(t, "serve", url, "127.0.0.1:0")
	return cmd, "http://" + addr
}

// site is a server in this process, on a Redis, and a Go client of the same Redis.
type site struct {
	redis    string
	url      string
	unix     string // its URL on a Unix socket
	c        *distlock.Client
	acquires atomic.Int64 // requests that the server has got
	renewals atomic.Int64
	lossy    atomic.Bool // every other answer is lost
}

const token = "7f0a-token-of-the-tests"

func newSite(t *testing.T, o server.Options) *site {
	t.Helper()
	s := &site{redis: testserver.SharedRedis(t).URL()}
	b := must.Get(driver.Open(t.Context(), s.redis))(t)
	h := must.Get(server.New(b, o))(t)
	var n atomic.Int64
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/v1/acquire":
			s.acquires.Add(1)
		case "/v1/renew":
			s.renewals.Add(1)
		}
		if s.lossy.Load() && n.Add(1)%2 == 0 {
			h.ServeHTTP(httptest.NewRecorder(), r)
			panic(http.ErrAbortHandler)
		}
		h.ServeHTTP(w, r)
	})
	srv := httptest.NewServer(handler)
	s.url, s.unix = srv.URL, socket(t, handler)
	s.c = must.Get(distlock.Open(t.Context(), s.redis, nil))(t)
	t.Cleanup(func() {
		srv.CloseClientConnections()
		srv.Close()
		s.c.Close()
		b.Close()
	})
	return s
}

// socket serves on a Unix socket, and returns its URL.
func socket(t *testing.T, h http.Handler) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "distlock-") // the test's own has too long a name
	must.OK(t, err)
	l := must.Get(net.Listen("unix", filepath.Join(dir, "socket")))(t)
	srv := &http.Server{Handler: h}
	go srv.Serve(l)
	t.Cleanup(func() {
		srv.Close()
		os.RemoveAll(dir)
	})
	return "http+unix://" + l.Addr().String()
}

var names atomic.Int64

func newName() string { return fmt.Sprintf("clients/%d", names.Add(1)) }

// take waits for a lock in Go.
func take(t *testing.T, c *distlock.Client, name string) *distlock.Lease {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	l := must.Get(c.Mutex(name).Lock(ctx))(t)
	return l
}

func give(t *testing.T, l *distlock.Lease) {
	t.Helper()
	expect.OK(t, l.Unlock(t.Context()))
}

// waits returns once a client waits for the lock.
func waits(t *testing.T, c *distlock.Client, name string) {
	t.Helper()
	eventually(t, "a waiter", func() bool {
		info, err := c.Inspect(t.Context(), name)
		return err == nil && info.WaiterCount > 0
	})
}

// The client's own tests, against a server that answers as each test says.
func TestOwn(t *testing.T) { eachClient(t, own) }

func own(t *testing.T, l *language) {
	expect.OK(t, run(l.own(t)))
}

// The README's example works, and says who has the lock.
func TestExample(t *testing.T) { eachClient(t, example) }

func example(t *testing.T, l *language) {
	redis := testserver.Redis(t) // of its own, since the name of the lock is as in the README
	_, url := serverProcess(t, redis.URL())
	c := must.Get(distlock.Open(t.Context(), redis.URL(), nil))(t)
	defer c.Close()
	before := take(t, c, "report")
	give(t, before)
	out, err := l.example(t, url).CombinedOutput()
	var fence uint64
	if _, scan := fmt.Sscanf(string(out), "part 0, fence %d", &fence); scan != nil || err != nil || fence <= before.Fence() || !strings.Contains(string(out), "part 2") {
		t.Errorf("the example says %s, %v", out, err)
	}
	after := take(t, c, "report")
	if after.Fence() <= fence {
		t.Errorf("fence %d after %d", after.Fence(), fence)
	}
	give(t, after)
}

// A waiter gets the lock by its first request: it did not poll. Its fence is greater, and so is the fence of the
// next holder.
func TestTurns(t *testing.T) { eachClient(t, turns) }

func turns(t *testing.T, l *language) {
	s := newSite(t, server.Options{})
	p, name := l.start(t, s.url), newName()
	held := take(t, s.c, name)
	p.lock(name, "wait", 0).fails("Held")
	before := s.acquires.Load()
	waiter := p.lock(name)
	waits(t, s.c, name)
	give(t, held)
	fence := waiter.hearsNumber("held")
	if n := s.acquires.Load() - before; n > 1 { // over a connection of calls it makes none
		t.Errorf("the waiter made %d requests", n)
	}
	if _, err := s.c.Mutex(name).TryLock(t.Context()); err == nil {
		t.Error("two have the lock")
	}
	waiter.release()
	next := take(t, s.c, name)
	if fence <= held.Fence() || next.Fence() <= fence {
		t.Errorf("fences %d, %d, %d", held.Fence(), fence, next.Fence())
	}
	p.lock(name, "wait", 50).fails("Held")
	give(t, next)
}

// Readers share the lock, and permits are counted.
func TestModes(t *testing.T) { eachClient(t, modes) }

func modes(t *testing.T, l *language) {
	s := newSite(t, server.Options{})
	p, name := l.start(t, s.unix), newName()
	reader := must.Get(s.c.RWMutex(name).TryRLock(t.Context()))(t)
	p.lock(name, "wait", 0, "mode", "write").fails("Held")
	mine, _ := p.take(name, "wait", 0, "mode", "read")
	give(t, reader)
	mine.release()
	name = newName()
	permit := must.Get(s.c.Semaphore(name, 2).TryAcquire(t.Context()))(t)
	mine, _ = p.take(name, "wait", 0, "limit", 2)
	if _, err := s.c.Semaphore(name, 2).TryAcquire(t.Context()); err == nil {
		t.Error("there are three permits")
	}
	give(t, permit)
	mine.release()
}

// A client without the right, and a request that no server takes, get errors of their own.
func TestRefusals(t *testing.T) { eachClient(t, refusals) }

func refusals(t *testing.T, l *language) {
	file := filepath.Join(t.TempDir(), "tokens")
	must.OK(t, os.WriteFile(file, fmt.Appendf(nil, "ci sha256:%x lock ci/\n", sha256.Sum256([]byte(token))), 0o600))
	access := must.Get(server.OpenAccess(file, nil))(t)
	s := newSite(t, server.Options{Access: access})
	wrong := l.startAs(t, token+"?", s.url)
	wrong.lock("ci/x").fails("Denied")
	p := l.startAs(t, token, s.url)
	p.lock("other").fails("Denied")
	mine, _ := p.take("ci/x")
	mine.release()
	p.lock("ci/" + strings.Repeat("x", 3000)).fails("Invalid")
	foreign := l.startAs(t, token, "http://"+testserver.DeadAddr(t))
	foreign.lock("ci/x", "wait", 0).fails("Unavailable")
}

// Clients and Go take turns with a number in a file, which only holders may touch, through servers that lose every
// other answer or are killed. No increment is lost.
func TestExclusion(t *testing.T) {
	t.Parallel()
	exclusion(t, func(l *language) bool { return !l.long })
}

func exclusion(t *testing.T, takesPart func(*language) bool) {
	const rounds = 12
	s := newSite(t, server.Options{})
	s.lossy.Store(true)
	victim, mortal := serverProcess(t, s.redis)
	name, file := newName(), filepath.Join(t.TempDir(), "number")
	must.OK(t, os.WriteFile(file, []byte("0 0"), 0o600))
	var peers []*peer
	for _, l := range languages {
		if takesPart(l) {
			peers = append(peers, l.start(t, mortal, s.url))
		}
	}
	var counting []*call
	for _, p := range peers {
		counting = append(counting, p.call("count", "name", name, "file", file, "rounds", rounds))
	}
	for i := range rounds {
		if i == rounds/2 {
			killed(victim)
		}
		l := take(t, s.c, name)
		if n, fence := number(t, file); l.Fence() <= fence {
			t.Errorf("fence %d after %d", l.Fence(), fence)
		} else if err := os.WriteFile(file, fmt.Appendf(nil, "%d %d", n+1, l.Fence()), 0o600); err != nil {
			t.Fatal(err)
		}
		give(t, l)
	}
	for _, c := range counting {
		c.hears("counted")
	}
	if n, _ := number(t, file); n != rounds*(len(peers)+1) {
		t.Errorf("%d of %d increments are left", n, rounds*(len(peers)+1))
	}
}

func number(t *testing.T, file string) (n int, fence uint64) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err == nil {
		_, err = fmt.Sscan(string(text), &n, &fence)
	}
	if err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	return n, fence
}

// A client that was stopped for longer than its TTL, and goes on, has lost the lock, and knows it.
func TestStoppedClient(t *testing.T) { eachClient(t, stoppedClient) }

func stoppedClient(t *testing.T, l *language) {
	s := newSite(t, server.Options{})
	p, name := l.start(t, s.url), newName()
	mine, fence := p.take(name, "ttl", 3000, "watch", 1)
	p.signal(syscall.SIGSTOP)
	next := take(t, s.c, name)
	now := monotonic()
	p.signal(syscall.SIGCONT)
	noticed(t, mine, fence, next, now)
}

// noticed expects that the peer has lost the lock, and that it ceased to trust it before the next holder had it.
func noticed(t *testing.T, mine *call, fence uint64, next *distlock.Lease, granted uint64) {
	t.Helper()
	if last := mine.hearsNumber("lost"); last >= granted {
		t.Errorf("trusted the lock for %v after another had it", time.Duration(last-granted))
	}
	if next.Fence() <= fence {
		t.Errorf("fence %d after %d", next.Fence(), fence)
	}
	mine.of("release").fails("Lost")
	give(t, next) // which the peer has not released
}

// The loss is signalled while the server gives no answer to renewals.
func TestStoppedServer(t *testing.T) { eachClient(t, stoppedServer) }

func stoppedServer(t *testing.T, l *language) {
	s := newSite(t, server.Options{})
	stopped, url := serverProcess(t, s.redis)
	p, name := l.start(t, url), newName()
	mine, fence := p.take(name, "ttl", 3000, "watch", 1)
	must.OK(t, stopped.Process.Signal(syscall.SIGSTOP))
	next := take(t, s.c, name)
	noticed(t, mine, fence, next, monotonic())
}

// A lease outlives its server: another server renews it.
func TestKilledServer(t *testing.T) { eachClient(t, killedServer) }

func killedServer(t *testing.T, l *language) {
	s := newSite(t, server.Options{})
	victim, url := serverProcess(t, s.redis)
	p, name := l.start(t, url, s.url), newName()
	mine, fence := p.take(name, "ttl", 12_000)
	killed(victim)
	eventually(t, "four renewals, which is longer than the TTL", func() bool { return s.renewals.Load() >= 4 })
	if _, err := s.c.Mutex(name).TryLock(t.Context()); err == nil {
		t.Error("the lock was not renewed")
	}
	mine.release()
	next := take(t, s.c, name)
	if next.Fence() <= fence {
		t.Errorf("fence %d after %d", next.Fence(), fence)
	}
	give(t, next)
}

// The lock of a process that was killed is free after its TTL, whoever waits.
func TestKilledHolders(t *testing.T) { eachClient(t, killedHolders) }

func killedHolders(t *testing.T, l *language) {
	s := newSite(t, server.Options{})
	name := newName()
	victim, text := child(t, "hold", s.redis, name)
	var first uint64
	fmt.Sscan(text, &first)
	p := l.start(t, s.url)
	waiter := p.lock(name, "ttl", 3000)
	waits(t, s.c, name)
	killed(victim)
	second := waiter.hearsNumber("held")
	p.program.kill()
	third := take(t, s.c, name)
	if first == 0 || second <= first || third.Fence() <= second {
		t.Errorf("fences %d, %d, %d", first, second, third.Fence())
	}
	give(t, third)
}

// The script in docs/clients.md takes the lock, releases it, and respects another client's lock.
func TestShell(t *testing.T) {
	t.Parallel()
	text := must.Get(os.ReadFile("../../docs/clients.md"))(t)
	_, script, _ := strings.Cut(string(text), "```sh\n")
	script, _, _ = strings.Cut(script, "```")
	s, name, dir := newSite(t, server.Options{}), newName(), t.TempDir()
	script = strings.Replace(script, "http://localhost:7077/v1/locks/report", s.url+"/v1/locks/"+httpwire.SegmentOf(name), 1)
	script = strings.Replace(script, "wait=20s", "wait=0s", 1)
	must.OK(t, os.WriteFile(filepath.Join(dir, "report"), []byte("#!/bin/sh\necho $FENCE >fence; read wait\n"), 0o700))
	testserver.Tool(t, "curl")
	run := func() (*exec.Cmd, io.Closer) {
		cmd := exec.Command("sh", "-c", script)
		cmd.Dir = dir
		in := must.Get(cmd.StdinPipe())(t)
		must.OK(t, testserver.Spawn(cmd))
		return cmd, in
	}
	before := take(t, s.c, name)
	if cmd, _ := run(); cmd.Wait() == nil {
		t.Error("the script ran beside another holder")
	}
	give(t, before)
	cmd, in := run()
	var fence uint64
	eventually(t, "fence of the script", func() bool {
		text, err := os.ReadFile(filepath.Join(dir, "fence"))
		n, _ := fmt.Sscan(string(text), &fence)
		return err == nil && n == 1
	})
	if _, err := s.c.Mutex(name).TryLock(t.Context()); err == nil || fence <= before.Fence() {
		t.Errorf("the script has fence %d after %d, and the lock %v", fence, before.Fence(), err)
	}
	cmd.Process.Signal(syscall.SIGTERM) // ends the script only after its work
	if _, err := s.c.Mutex(name).TryLock(t.Context()); err == nil {
		t.Error("the lock was released before the work had ended")
	}
	in.Close()
	cmd.Wait()
	if l, err := s.c.Mutex(name).TryLock(t.Context()); err != nil {
		t.Errorf("the script has not released the lock: %v", err)
	} else {
		give(t, l)
	}
}

// The client for Java, with all that the others are tested with: a JVM starts slowly.
func TestLongJava(t *testing.T) {
	for _, l := range languages {
		if !l.long {
			continue
		}
		for name, test := range map[string]func(*testing.T, *language){
			"own": own, "example": example, "turns": turns, "modes": modes, "refusals": refusals, "stopped client": stoppedClient,
			"stopped server": stoppedServer, "killed server": killedServer, "killed holders": killedHolders,
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				test(t, l)
			})
		}
	}
	t.Run("exclusion", func(t *testing.T) {
		t.Parallel()
		exclusion(t, func(*language) bool { return true })
	})
}
