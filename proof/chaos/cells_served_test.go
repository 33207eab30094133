//go:build linux

package chaos

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/distlock/distlock/internal/testkit/faultproxy"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// served starts Redis, and "distlock serve" before it. Faults hit that server, and the network between it and the workers.
func served(s *scene) {
	store := testserver.Redis(s.T, "--appendonly", "yes", "--appendfsync", "always")
	srv := &lockServer{t: s.T, store: store.URL(), addr: testserver.FreeAddr(s.T)}
	srv.Start()
	s.Cleanup(srv.Kill)
	s.server, s.proxy, s.direct = srv, faultproxy.New(s.T, srv.addr), store.URL()
	s.url = "http://" + s.proxy.Addr()
}

// servedTwice starts two servers before one Redis, which are away by different times. Faults hit the one that is further away.
func servedTwice(s *scene) {
	served(s)
	near := &lockServer{t: s.T, store: s.direct, addr: testserver.FreeAddr(s.T)}
	near.Start()
	s.Cleanup(near.Kill)
	front := faultproxy.New(s.T, near.addr)
	front.Delay(5 * time.Millisecond)
	s.proxy.Delay(20 * time.Millisecond)
	s.url += "," + front.Addr()
}

// servedApart starts two servers before one store, with a way of its own from each worker to each of them. Every second worker
// prefers the other one.
func servedApart(store func(*scene) string) func(*scene) {
	return func(s *scene) {
		s.direct, s.ways = store(s), map[int][]*faultproxy.Proxy{}
		for range 2 {
			srv := &lockServer{t: s.T, store: s.direct, addr: testserver.FreeAddr(s.T)}
			srv.Start()
			s.Cleanup(srv.Kill)
			s.members = append(s.members, srv)
		}
		s.reach = func(process int) string {
			one, two := faultproxy.New(s.T, s.members[0].Addr()), faultproxy.New(s.T, s.members[1].Addr())
			s.ways[process] = []*faultproxy.Proxy{one, two}
			if process%2 == 0 {
				one, two = two, one
			}
			return "http://" + one.Addr() + "," + two.Addr()
		}
	}
}

// turmoil loses messages and holds them back for up to twice the TTL. Four times one server is killed and restarted. For two of these
// the other one is frozen, and for one half of the connections are silent, or all of them, so that holds are lost.
var turmoil = fault{"servers killed and frozen, connections silent, messages lost and late", 0.2, func(s *scene) func() {
	i, all := rand.IntN(2), rand.IntN(2) == 0
	mortal, other, loosen := s.members[i], s.members[1-i], s.holdOn()
	s.toAll(func(p *faultproxy.Proxy) {
		p.Late(2 * s.ttl)
		p.Storm(rand.Uint64(), 0.02, "/v1/")
	})
	for round := range 4 {
		switch round {
		case 1:
			other.Pause()
		case 2:
			s.toAll(func(p *faultproxy.Proxy) { p.Sever(func(net.Conn) bool { return all || rand.IntN(2) == 0 }) })
		case 3:
			other.Resume()
			s.toAll((*faultproxy.Proxy).Pass)
		}
		mortal.Kill()
		time.Sleep(s.ttl / 5)
		mortal.Start()
		time.Sleep(s.ttl * 4 / 5)
	}
	return func() {
		loosen()
		lost := int64(0)
		s.toAll(func(p *faultproxy.Proxy) {
			p.Storm(0, 0, "")
			p.Deliver()
			lost += p.Lost()
		})
		if lost == 0 {
			s.Error("nothing was lost")
		}
	}
}}

// cli is the command, built once, with the race detector if this program has it.
var cli = sync.OnceValues(func() (string, error) {
	args := []string{"build", "-o", cliPath()}
	if b, ok := debug.ReadBuildInfo(); ok && slices.Contains(b.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		args = append(args, "-race")
	}
	out, err := exec.Command("go", append(args, "github.com/distlock/distlock/cmd/distlock")...).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, out)
	}
	return cliPath(), err
})

// cliPath is where cli is. TestMain removes it.
func cliPath() string {
	return filepath.Join(os.TempDir(), fmt.Sprintf("distlock-chaos-%d", os.Getpid()))
}

// lockServer is a process of "distlock serve".
type lockServer struct {
	t           *testing.T
	store, addr string
	cmd         *exec.Cmd
}

func (l *lockServer) Addr() string { return l.addr }

// Start returns once the server listens.
func (l *lockServer) Start() {
	path := must.Get(cli())(l.t)
	l.cmd = exec.Command(path, "serve", "--url", l.store, "--listen", l.addr, "--log", "off")
	l.cmd.Env, l.cmd.Stderr = append(os.Environ(), "GORACE=halt_on_error=1 "+os.Getenv("GORACE")), os.Stderr
	out := must.Get(l.cmd.StdoutPipe())(l.t)
	must.OK(l.t, testserver.Spawn(l.cmd))
	if line, err := bufio.NewReader(out).ReadString('\n'); !strings.Contains(line, " serves ") {
		l.t.Fatalf("distlock serve says %q, %v", line, err)
	}
}

// Kill fails if the server has ended by itself, by a panic or a race.
func (l *lockServer) Kill() {
	l.cmd.Process.Kill()
	if err := l.cmd.Wait(); l.cmd.ProcessState.Exited() {
		l.t.Errorf("distlock serve has ended by itself: %v", err)
	}
}

func (l *lockServer) Pause()  { l.cmd.Process.Signal(syscall.SIGSTOP) }
func (l *lockServer) Resume() { l.cmd.Process.Signal(syscall.SIGCONT) }

func servedCells() []cell {
	two := deployment{name: "served-two", title: "two of `distlock serve` before Redis, at different distances", ttl: 2 * time.Second, start: servedTwice}
	apart, sqlite := two, deployment{name: "served-sqlite", title: "two of `distlock serve` before SQLite", ttl: time.Second, crowd: 30}
	apart.ttl, apart.crowd = time.Second, 30
	apart.start = servedApart(func(s *scene) string {
		return testserver.Redis(s.T, "--appendonly", "yes", "--appendfsync", "always").URL()
	})
	sqlite.start = servedApart(func(s *scene) string { return "sqlite:" + filepath.Join(s.TempDir(), "locks.db") })
	return append(networkCells(deployment{name: "served", title: "`distlock serve` before Redis", ttl: 2 * time.Second, start: served}), []cell{
		{two, killClient, "kill-client", safe},
		{two, killServer, "kill-server", safe},
		{two, pauseServer, "pause-server", safe},
		{two, cutConnections, "cut", safe},
		{two, loseAnswers, "lose-answers", safe},
		{apart, turmoil, "turmoil", safe},
		{sqlite, turmoil, "turmoil", safe},
	}...)
}
