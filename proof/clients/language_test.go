//go:build linux

// Package clients tests the clients in other languages, on real servers: on one lock with holders in Go, with
// servers and clients that are killed and stopped.
package clients

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"unsafe"

	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

const clients = "../../clients"

// pythonPath is absolute, since the client's own tests run in another folder.
var pythonPath, _ = filepath.Abs(filepath.Join(clients, "python", "src"))

// language is one whose client is tested.
type language struct {
	name    string
	title   string // on pages
	long    bool   // it starts slowly: make test-long tests it alone
	program func(tb testing.TB) *exec.Cmd
	own     func(tb testing.TB) *exec.Cmd // runs the client's own tests

	example func(tb testing.TB, url string) *exec.Cmd
}

var languages = []*language{
	{
		name: "python", title: "Python, threads",
		program: func(tb testing.TB) *exec.Cmd { return command(tb, "python3", "-W", "error", "programs/threads.py") },
		own:     func(tb testing.TB) *exec.Cmd { return pythonTests(tb) },
		example: func(tb testing.TB, url string) *exec.Cmd {
			return command(tb, "python3", "-c", exampleAt(tb, "python/example.py", url))
		},
	},
	{
		name: "node", title: "Node",
		program: func(tb testing.TB) *exec.Cmd { return command(tb, "node", "--expose-gc", "programs/node.mjs") },
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
		name: "java", title: "Java", long: true,
		program: func(tb testing.TB) *exec.Cmd { return java(tb, "Peer") },
		own:     func(tb testing.TB) *exec.Cmd { return java(tb, "io.github.distlock.LocksTest") },

		example: func(tb testing.TB, url string) *exec.Cmd {
			file := filepath.Join(tb.TempDir(), "Example.java")
			must.OK(tb, os.WriteFile(file, []byte(exampleAt(tb, "java/Example.java", url)), 0o600))
			return java(tb, file)
		},
	},
}

// ourselves returns the command of this program in a role.
func ourselves(role string) *exec.Cmd {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), roleEnv+"="+role)
	return cmd
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

// monotonic is the clock that Python, Node and Java use too.
func monotonic() uint64 {
	var now syscall.Timespec
	if _, _, errno := syscall.Syscall(syscall.SYS_CLOCK_GETTIME, 1, uintptr(unsafe.Pointer(&now)), 0); errno != 0 {
		panic(errno)
	}
	return uint64(now.Nano())
}
