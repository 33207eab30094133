// Package interop helps to test that distlock shares locks with a Java library: a JVM with that library,
// commanded line by line; a checker that detects overlapping holds; parties that take turns under it;
// waiters; and Go processes that are killed.
//
// The Java half is in src. The Maven projects of interop/… are compiled with it.
package interop

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/distlock/distlock/internal/testkit/testserver"
)

// JVM is a process that runs a Peer class (Peer.java).
type JVM struct {
	cmd *exec.Cmd
	in  io.Writer

	connecting sync.Mutex
	connected  map[string]string // client names by key

	mu    sync.Mutex
	last  int
	calls map[string]chan string
}

// JVMs are processes of one class, which the tests of a package share: a JVM starts slowly.
type JVMs struct {
	Class string                       // of the Maven project in the package's folder
	Jars  func(tb testing.TB) []string // nil: the project's

	mu  sync.Mutex
	all []*JVM
}

// Shared returns one of the shared processes, counted from 0.
func (js *JVMs) Shared(t *testing.T, i int) *JVM {
	t.Helper()
	js.mu.Lock()
	defer js.mu.Unlock()
	for len(js.all) <= i {
		js.all = append(js.all, js.Start(t))
	}
	return js.all[i]
}

// Start starts a process for one test.
func (js *JVMs) Start(t *testing.T) *JVM {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	var jars []string
	if js.Jars != nil {
		jars = js.Jars(t)
	}
	cmd := testserver.Java(t, filepath.Base(dir), js.Class, jars...)
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

// Disconnect closes the clients with stale keys in all shared processes, by the call "close name".
func (js *JVMs) Disconnect(t *testing.T, stale func(key string) bool) {
	t.Helper()
	js.mu.Lock()
	defer js.mu.Unlock()
	for _, j := range js.all {
		j.disconnect(t, stale)
	}
}

// read dispatches replies until the process ends.
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

// Kill kills the process.
func (j *JVM) Kill() {
	j.cmd.Process.Kill()
	j.cmd.Wait()
}

var clients atomic.Int64

// Client returns the name of the process's client for a key, which stands for what it is connected to.
// The call "connect name words…" creates it first.
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

// Thread is a Java thread. It owns the locks that it takes.
type Thread struct {
	j    *JVM
	name string
}

// Thread returns the thread of that name, which starts with its first call.
func (j *JVM) Thread(name string) *Thread { return &Thread{j, name} }

// Parks waits until the thread is parked. It only parks to wait for a lock.
func (th *Thread) Parks(t *testing.T) {
	t.Helper()
	Eventually(t, func() string { return th.name + " does not wait" }, func() bool {
		return th.j.Thread("main").Call("parked", th.name).Wait(t)[0] == "true"
	})
}

// Call is a call in a thread.
type Call struct {
	words []string
	reply chan string
}

// Call starts a call once the thread's earlier calls have ended.
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

// result returns the reply, or Java's exception.
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

// Wait returns the reply. An exception fails the test.
func (c *Call) Wait(t *testing.T) []string {
	t.Helper()
	reply, err := c.result(t)
	if err != nil {
		t.Fatalf("java: %v: %v", c.words, err)
	}
	return reply
}

// Says expects a reply of one word.
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

// At returns the time in the first word of a reply.
func At(t *testing.T, reply []string) time.Time {
	t.Helper()
	ns, err := strconv.ParseInt(reply[0], 10, 64)
	if err != nil {
		t.Fatalf("java: no instant in %v", reply)
	}
	return time.Unix(0, ns)
}

// Millis formats a duration for Java.
func Millis(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }
