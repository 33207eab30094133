//go:build linux

// Package clients tests the clients in other languages, on real servers: on one lock with holders in Go, with
// servers and clients that are killed and stopped.
package clients

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

const clients = "../../clients"

// pythonPath is absolute, since the client's own tests run in another folder.
var pythonPath, _ = filepath.Abs(filepath.Join(clients, "python", "src"))

// language is one whose client is tested.
type language struct {
	name string
	unix bool // its client can use Unix sockets
	long bool // it starts slowly: make test-long tests it
	peer func(tb testing.TB, urls []string) *exec.Cmd
	own  func(tb testing.TB) *exec.Cmd // runs the client's own tests

	example func(tb testing.TB, url string) *exec.Cmd
}

var languages = []*language{
	{
		name: "python", unix: true,
		peer: func(tb testing.TB, urls []string) *exec.Cmd {
			return command(tb, "python3", append([]string{"-W", "error", "peer.py"}, urls...)...)
		},
		own: func(tb testing.TB) *exec.Cmd { return pythonTests(tb) },
		example: func(tb testing.TB, url string) *exec.Cmd {
			return command(tb, "python3", "-c", exampleAt(tb, "python/example.py", url))
		},
	},
	{
		name: "node", unix: true,
		peer: func(tb testing.TB, urls []string) *exec.Cmd {
			return command(tb, "node", append([]string{"peer.mjs"}, urls...)...)
		},
		own: func(tb testing.TB) *exec.Cmd {
			return nodeTests(tb, "tests/all.mjs")
		},
		example: func(tb testing.TB, url string) *exec.Cmd {
			cmd := command(tb, "node", "--input-type=module", "-e", exampleAt(tb, "node/example.mjs", url))
			cmd.Dir = filepath.Join(clients, "node") // where it imports the client by its name
			return cmd
		},
	},
	{
		name: "java", unix: true, long: true,
		peer: func(tb testing.TB, urls []string) *exec.Cmd { return java(tb, append([]string{"Peer"}, urls...)...) },
		own:  func(tb testing.TB) *exec.Cmd { return java(tb, "io.github.distlock.LocksTest") },

		example: func(tb testing.TB, url string) *exec.Cmd {
			file := filepath.Join(tb.TempDir(), "Example.java")
			must.OK(tb, os.WriteFile(file, []byte(exampleAt(tb, "java/Example.java", url)), 0o600))
			return java(tb, file)
		},
	},
}

// exampleAt returns the text of an example with the URL of a server in place of its own.
func exampleAt(tb testing.TB, file, url string) string {
	tb.Helper()
	text := string(must.Get(os.ReadFile(filepath.Join(clients, file)))(tb))
	const own = `"http://localhost:7077"`
	if strings.Count(text, own) != 1 {
		tb.Fatalf("%s does not name %s once", file, own)
	}
	return strings.Replace(text, own, strconv.Quote(url), 1)
}

// eachClient runs a test with the client of each language. Languages that start slowly have tests of their own,
// see TestLongJava.
func eachClient(t *testing.T, test func(t *testing.T, l *language)) {
	t.Parallel()
	for _, l := range languages {
		if !l.long {
			t.Run(l.name, func(t *testing.T) {
				t.Parallel()
				test(t, l)
			})
		}
	}
}

func command(tb testing.TB, tool string, args ...string) *exec.Cmd {
	tb.Helper()
	cmd := exec.Command(testserver.Tool(tb, tool), args...)
	cmd.Env = append(os.Environ(), "PYTHONPATH="+pythonPath, "PYTHONDONTWRITEBYTECODE=1")
	return cmd
}

// distlockCommand returns the path of the command distlock, for tests that start servers themselves.
func distlockCommand(tb testing.TB) string {
	tb.Helper()
	must.OK(tb, buildCommand())
	return commandPath
}

// commandPath is where the command is built. TestMain removes it.
var commandPath = filepath.Join(os.TempDir(), fmt.Sprintf("distlock-clients-%d", os.Getpid()))

var buildCommand = sync.OnceValue(func() error {
	return run(exec.Command("go", "build", "-o", commandPath, "github.com/distlock/distlock/cmd/distlock"))
})

// run runs a command; its error has what the command printed.
func run(cmd *exec.Cmd) error {
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%v: %w\n%s", cmd.Args, err, out)
	}
	return nil
}

// peer is a process with a client.
type peer struct {
	t     *testing.T
	cmd   *exec.Cmd
	in    io.Writer
	lines chan string
}

// start starts a peer, which ends with the test.
func (l *language) start(t *testing.T, urls ...string) *peer {
	t.Helper()
	return l.startAs(t, "", urls...)
}

// startAs starts a peer that has a token.
func (l *language) startAs(t *testing.T, token string, urls ...string) *peer {
	t.Helper()
	cmd := l.peer(t, urls)
	cmd.Stderr = os.Stderr
	if token != "" {
		cmd.Env = append(cmd.Environ(), "DISTLOCK_TOKEN="+token)
	}
	in := must.Get(cmd.StdinPipe())(t)
	out := must.Get(cmd.StdoutPipe())(t)
	must.OK(t, testserver.Spawn(cmd))
	p := &peer{t, cmd, in, make(chan string, 100)}
	go func() {
		defer close(p.lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			p.lines <- s.Text()
		}
	}()
	t.Cleanup(p.kill)
	return p
}

// say sends the peer a line: lock NAME TTL WAIT MODE LIMIT (in ms, a negative wait is for ever), release, or count
// NAME FILE ROUNDS.
func (p *peer) say(words ...any) { fmt.Fprintln(p.in, words...) }

// patience bounds what isn't meant to take long.
const patience = 2 * time.Minute

// hears returns the rest of the peer's next line, which begins with a word.
func (p *peer) hears(word string) string {
	p.t.Helper()
	select {
	case line, ok := <-p.lines:
		rest, found := strings.CutPrefix(line+" ", word+" ")
		if !ok || !found {
			p.t.Fatalf("the peer says %q, want %s", line, word)
		}
		return strings.TrimSpace(rest)
	case <-time.After(patience):
		p.t.Fatalf("the peer does not say %s", word)
	}
	return ""
}

// hearsNumber is hears for a line with a number.
func (p *peer) hearsNumber(word string) uint64 {
	p.t.Helper()
	text := p.hears(word)
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		p.t.Fatalf("the peer says %s %q", word, text)
	}
	return n
}

// fails hears an error, which does not contain a secret.
func (p *peer) fails(kind string) {
	p.t.Helper()
	if text := p.hears("error " + kind); strings.Contains(text, token) {
		p.t.Errorf("an error shows the token: %s", text)
	}
}

// lock takes a free lock, and returns its fence.
func (p *peer) lock(name string, ttl time.Duration) uint64 {
	p.t.Helper()
	p.say("lock", name, ttl.Milliseconds(), -1, "exclusive", 0)
	return p.hearsNumber("held")
}

func (p *peer) signal(s syscall.Signal) {
	p.t.Helper()
	must.OK(p.t, p.cmd.Process.Signal(s))
}

func (p *peer) kill() {
	p.cmd.Process.Kill()
	p.cmd.Wait()
}

// monotonic is the clock that Python, Node and Java use too.
func monotonic(t *testing.T) uint64 {
	t.Helper()
	var now syscall.Timespec
	if _, _, errno := syscall.Syscall(syscall.SYS_CLOCK_GETTIME, 1, uintptr(unsafe.Pointer(&now)), 0); errno != 0 {
		t.Fatal(errno)
	}
	return uint64(now.Nano())
}
