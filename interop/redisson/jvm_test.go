package redisson

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/distlock/distlock/internal/testserver"
)

// patience is how long a call may take that is not meant to wait.
const patience = 60 * time.Second

// jvm is a process of Peer.java.
type jvm struct {
	cmd       *exec.Cmd
	in        io.Writer
	connected map[string]string // names of clients by what they are connected to

	mu    sync.Mutex
	last  int
	calls map[string]chan string
}

// jvms are the processes that all tests share: a JVM starts slowly.
var jvms struct {
	sync.Mutex
	all []*jvm
}

func sharedJVM(t *testing.T, i int) *jvm {
	t.Helper()
	jvms.Lock()
	defer jvms.Unlock()
	for len(jvms.all) <= i {
		jvms.all = append(jvms.all, startJVM(t))
	}
	return jvms.all[i]
}

func startJVM(t *testing.T) *jvm {
	t.Helper()
	cmd := testserver.Java(t, ".", "distlock.interop.Peer")
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
	j := &jvm{cmd: cmd, in: in, calls: map[string]chan string{}, connected: map[string]string{}}
	go j.read(out)
	return j
}

// read passes answers on until the process ends.
func (j *jvm) read(out io.Reader) {
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

// kill ends the process as a crash would.
func (j *jvm) kill() {
	j.cmd.Process.Kill()
	j.cmd.Wait()
}

// client is the name of the process's client of a deployment, which is connected if it
// was not yet; or the names of those of independent servers.
func (j *jvm) client(t *testing.T, d *deployment, watchdog time.Duration) string {
	t.Helper()
	if d.mode == "red" {
		var names []string
		for _, addr := range d.addrs {
			names = append(names, j.client(t, &deployment{name: "red", mode: "member", addrs: []string{addr}}, watchdog))
		}
		return strings.Join(names, ",")
	}
	key := strings.Join(append([]string{d.name, watchdog.String()}, d.addrs...), " ")
	if j.connected[key] == "" {
		name := fmt.Sprintf("%s-%d", d.name, clients.Add(1))
		j.thread("main").call("connect", name, d.mode, strings.Join(d.addrs, ","), millis(watchdog), d.prefix).wait(t)
		j.connected[key] = name
	}
	return j.connected[key]
}

var clients atomic.Int64

// disconnectAll closes the clients of servers that are going to end, in all processes.
func disconnectAll(t *testing.T, addrs []string) {
	jvms.Lock()
	defer jvms.Unlock()
	for _, j := range jvms.all {
		for key, client := range j.connected {
			if slices.ContainsFunc(addrs, func(addr string) bool { return slices.Contains(strings.Fields(key), addr) }) {
				j.thread("main").call("close", client).wait(t)
				delete(j.connected, key)
			}
		}
	}
}

// thread is a Java thread, which owns the locks that it takes.
type thread struct {
	j    *jvm
	name string
}

func (j *jvm) thread(name string) *thread { return &thread{j, name} }

// parks returns when the thread has nothing left to do but wait. Redisson's reader misses
// the message of a writer that comes before.
func (th *thread) parks(t *testing.T) {
	t.Helper()
	eventually(t, func() string { return th.name + " does not wait" }, func() bool {
		return th.j.thread("main").call("parked", th.name).wait(t)[0] == "true"
	})
}

// call is what a thread was asked to do.
type call struct {
	words []string
	reply chan string
}

// call asks the thread to do something when it has done what it was asked before.
func (th *thread) call(words ...string) *call {
	c := &call{words: words, reply: make(chan string, 1)}
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
func (c *call) result(t *testing.T) ([]string, error) {
	t.Helper()
	select {
	case reply := <-c.reply:
		if text, ok := strings.CutPrefix(reply, "ok "); ok {
			return strings.Split(text, " "), nil
		}
		return nil, errors.New(reply)
	case <-time.After(patience):
		t.Fatalf("java: %v: no answer in %v", c.words, patience)
		return nil, nil
	}
}

// wait is the answer, which is no exception.
func (c *call) wait(t *testing.T) []string {
	t.Helper()
	reply, err := c.result(t)
	if err != nil {
		t.Fatalf("java: %v: %v", c.words, err)
	}
	return reply
}

// says expects an answer of one word.
func (c *call) says(t *testing.T, want string) {
	t.Helper()
	if got := c.wait(t)[0]; got != want {
		t.Errorf("java: %v: %s, want %s", c.words, got, want)
	}
}

// refused expects an exception.
func (c *call) refused(t *testing.T, exception string) {
	t.Helper()
	if reply, err := c.result(t); err == nil || !strings.Contains(err.Error(), exception) {
		t.Errorf("java: %v: %v, %v; want %s", c.words, reply, err, exception)
	}
}

// at is the instant in the first word of an answer.
func at(t *testing.T, reply []string) time.Time {
	t.Helper()
	ns, err := strconv.ParseInt(reply[0], 10, 64)
	if err != nil {
		t.Fatalf("java: no instant in %v", reply)
	}
	return time.Unix(0, ns)
}

// token is the fence in the answer of a fenced lock.
func token(t *testing.T, reply []string) uint64 {
	t.Helper()
	n, err := strconv.ParseUint(reply[1], 10, 64)
	if err != nil {
		t.Fatalf("java: no token in %v", reply)
	}
	return n
}

func millis(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }
