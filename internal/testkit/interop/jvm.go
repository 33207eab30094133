package interop

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/distlock/distlock/internal/testkit/testserver"
)

// Patience is how long a call may take that is not meant to wait.
const Patience = 3 * time.Minute

// JVM is a process of a class that is a Peer (Peer.java).
type JVM struct {
	cmd *exec.Cmd
	in  io.Writer

	connecting sync.Mutex
	connected  map[string]string // names of clients by what they are connected to

	mu    sync.Mutex
	last  int
	calls map[string]chan string
}

// JVMs are processes of one class, which the tests of a package share: a JVM starts slowly.
type JVMs struct {
	Class string                       // of the Maven project in the package's folder
	Jars  func(tb testing.TB) []string // what it runs with in place of what the project names; nil: that

	mu  sync.Mutex
	all []*JVM
}

// Shared is one of the processes that all tests use, counted from 0.
func (js *JVMs) Shared(t *testing.T, i int) *JVM {
	t.Helper()
	js.mu.Lock()
	defer js.mu.Unlock()
	for len(js.all) <= i {
		js.all = append(js.all, js.Start(t))
	}
	return js.all[i]
}

// Start starts a process of the test's own.
func (js *JVMs) Start(t *testing.T) *JVM {
	t.Helper()
	project := testserver.JavaProject{Dir: ".", Sources: []string{"../../internal/testkit/interop"}}
	if js.Jars != nil {
		project.Jars = js.Jars(t)
	}
	cmd := testserver.Java(t, project, js.Class)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := testserver.Spawn(cmd); err != nil {
		t.Fatal(err)
	}
	j := &JVM{cmd: cmd, in: in, calls: map[string]chan string{}, connected: map[string]string{}}
	go j.read(out)
	return j
}

// Disconnect closes, in all shared processes, the clients with the keys that are stale, by
// the call "close name".
func (js *JVMs) Disconnect(t *testing.T, stale func(key string) bool) {
	t.Helper()
	js.mu.Lock()
	defer js.mu.Unlock()
	for _, j := range js.all {
		j.disconnect(t, stale)
	}
}

// read passes answers on until the process ends.
func (j *JVM) read(out io.Reader) {
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		id, reply, _ := strings.Cut(lines.Text(), " ")
		j.mu.Lock()
		c := j.calls[id]
		delete(j.calls, id)
		j.mu.Unlock()
		if c != nil {
			c <- reply
		}
	}
}

// Kill ends the process as a crash would.
func (j *JVM) Kill() {
	j.cmd.Process.Kill()
	j.cmd.Wait()
}

var clients atomic.Int64

// Client is the name of the process's client for a key, which says what it is connected
// to. If there is none yet, it is made by the call "connect name words…".
func (j *JVM) Client(t *testing.T, key string, words ...string) string {
	t.Helper()
	j.connecting.Lock()
	defer j.connecting.Unlock()
	if j.connected[key] == "" {
		name := fmt.Sprintf("client-%d", clients.Add(1))
		j.Thread("main").Call(append([]string{"connect", name}, words...)...).Wait(t)
		j.connected[key] = name
	}
	return j.connected[key]
}

func (j *JVM) disconnect(t *testing.T, stale func(key string) bool) {
	t.Helper()
	j.connecting.Lock()
	defer j.connecting.Unlock()
	for key, name := range j.connected {
		if stale(key) {
			j.Thread("main").Call("close", name).Wait(t)
			delete(j.connected, key)
		}
	}
}

// Thread is a Java thread, which owns the locks that it takes.
type Thread struct {
	j    *JVM
	name string
}

// Thread is the thread of that name, which begins with its first call.
func (j *JVM) Thread(name string) *Thread { return &Thread{j, name} }

// Parks returns when the thread has nothing left to do but wait for news of a lock.
func (th *Thread) Parks(t *testing.T) {
	t.Helper()
	Eventually(t, func() string { return th.name + " does not wait" }, func() bool {
		return th.j.Thread("main").Call("parked", th.name).Wait(t)[0] == "true"
	})
}

// Call is what a thread was asked to do.
type Call struct {
	words []string
	reply chan string
}

// Call asks the thread to do something when it has done what it was asked before.
func (th *Thread) Call(words ...string) *Call {
	c := &Call{words: words, reply: make(chan string, 1)}
	j := th.j
	j.mu.Lock()
	defer j.mu.Unlock()
	j.last++
	id := strconv.Itoa(j.last)
	j.calls[id] = c.reply
	fmt.Fprintln(j.in, id, th.name, strings.Join(words, " "))
	return c
}

// result is the answer, or Java's exception.
func (c *Call) result(t *testing.T) ([]string, error) {
	t.Helper()
	select {
	case reply := <-c.reply:
		if text, ok := strings.CutPrefix(reply, "ok "); ok {
			return strings.Split(text, " "), nil
		}
		return nil, errors.New(reply)
	case <-time.After(Patience):
		t.Fatalf("java: %v: no answer in %v", c.words, Patience)
		return nil, nil
	}
}

// Wait is the answer, which is no exception.
func (c *Call) Wait(t *testing.T) []string {
	t.Helper()
	reply, err := c.result(t)
	if err != nil {
		t.Fatalf("java: %v: %v", c.words, err)
	}
	return reply
}

// Says expects an answer of one word.
func (c *Call) Says(t *testing.T, want string) {
	t.Helper()
	if got := c.Wait(t)[0]; got != want {
		t.Errorf("java: %v: %s, want %s", c.words, got, want)
	}
}

// Refused expects an exception.
func (c *Call) Refused(t *testing.T, exception string) {
	t.Helper()
	if reply, err := c.result(t); err == nil || !strings.Contains(err.Error(), exception) {
		t.Errorf("java: %v: %v, %v; want %s", c.words, reply, err, exception)
	}
}

// At is the instant in the first word of an answer.
func At(t *testing.T, reply []string) time.Time {
	t.Helper()
	ns, err := strconv.ParseInt(reply[0], 10, 64)
	if err != nil {
		t.Fatalf("java: no instant in %v", reply)
	}
	return time.Unix(0, ns)
}

// Millis is a duration as Java's calls take it.
func Millis(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }
