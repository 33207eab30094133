//go:build linux

package chaos

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
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

// cli is the command, built once.
var cli = sync.OnceValues(func() (string, error) {
	out, err := exec.Command("go", "build", "-o", cliPath(), "github.com/distlock/distlock/cmd/distlock").CombinedOutput()
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
	out := must.Get(l.cmd.StdoutPipe())(l.t)
	must.OK(l.t, testserver.Spawn(l.cmd))
	if line, err := bufio.NewReader(out).ReadString('\n'); !strings.Contains(line, " serves ") {
		l.t.Fatalf("distlock serve says %q, %v", line, err)
	}
}

func (l *lockServer) Kill() {
	l.cmd.Process.Kill()
	l.cmd.Wait()
}

func (l *lockServer) Pause()  { l.cmd.Process.Signal(syscall.SIGSTOP) }
func (l *lockServer) Resume() { l.cmd.Process.Signal(syscall.SIGCONT) }

func servedCells() []cell {
	two := deployment{name: "served-two", title: "two of `distlock serve` before Redis, at different distances", ttl: 2 * time.Second, start: servedTwice}
	return append(networkCells(deployment{name: "served", title: "`distlock serve` before Redis", ttl: 2 * time.Second, start: served}), []cell{
		{two, killClient, "kill-client", safe},
		{two, killServer, "kill-server", safe},
		{two, pauseServer, "pause-server", safe},
		{two, cutConnections, "cut", safe},
		{two, loseAnswers, "lose-answers", safe},
	}...)
}
