package testserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/distlock/distlock/internal/wait"
)

const (
	// startTimeout is how long servers may take until they answer, or do what an
	// administrator asks. A loaded machine may need that long. A process that ends is
	// reported at once.
	startTimeout = 5 * time.Minute

	// pollTimeout is how long one question may take that is repeated until startTimeout.
	pollTimeout = 2 * time.Second
)

// Process is a server's process. Its methods are for one goroutine at a time, and fail the test
// that started the server if they don't succeed.
type Process struct {
	tb     testing.TB
	path   string
	args   []string
	dir    string
	port   int          // for clients
	second int          // how far above it the server has another one; 0: it has none
	ready  func() error // sends the server something, in its protocol

	account *account  // that it runs as; nil: this user
	ends    os.Signal // that Stop sends, if not term
	family  bool      // it forks: what is done to it is done to its children

	cmd  *exec.Cmd
	done chan struct{} // closed when cmd has ended
}

// newProcess returns a process that is not started yet, with a folder of its own, which only this user
// can read. It ends a test without the program.
func newProcess(tb testing.TB, coordinator string, p *program) *Process {
	tb.Helper()
	path := p.must(tb, coordinator)
	dir, err := newDir(coordinator)
	if err != nil {
		tb.Fatal(err)
	}
	return &Process{tb: tb, path: path, dir: dir}
}

// Addr returns the host and port for clients.
func (p *Process) Addr() string { return loopback(p.port) }

// Dir returns the folder that the server runs in.
func (p *Process) Dir() string { return p.dir }

func (p *Process) data() string { return filepath.Join(p.dir, "data") }

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// usable ends the test, and the server, if there was an error.
func (p *Process) usable(err error) {
	p.tb.Helper()
	if err != nil {
		p.end()
		p.tb.Fatalf("testserver: %v", err)
	}
}

// Start starts the server again after Stop or Kill, on the same port and data, and
// returns when it answers.
func (p *Process) Start() {
	p.tb.Helper()
	if err := p.start(); err != nil {
		p.tb.Fatalf("testserver: %v", err)
	}
}

// Stop asks the server to end, as an operator would, and waits until it has.
func (p *Process) Stop() {
	p.cmd.Process.Signal(cmp.Or(p.ends, term))
	select {
	case <-p.done:
	case <-time.After(startTimeout):
		p.Kill()
	}
}

// Kill ends the server at once, as a crash would.
func (p *Process) Kill() {
	p.signalFamily(kill)
	p.cmd.Process.Kill()
	<-p.done
}

// Pause freezes the server: its connections stay open, nothing is answered.
func (p *Process) Pause() {
	p.tb.Helper()
	p.signal(pause)
}

// Resume ends a Pause. The server then answers what it was sent meanwhile.
func (p *Process) Resume() {
	p.tb.Helper()
	p.signal(resume)
}

func (p *Process) signal(s os.Signal) {
	p.tb.Helper()
	if err := p.signalFamily(s); err != nil {
		p.tb.Fatalf("testserver: %v: %v", s, err)
	}
}

// PID returns the number of the server's process.
func (p *Process) PID() int { return p.cmd.Process.Pid }

func (p *Process) start() error { return startTogether(p) }

// startTogether starts processes that may need each other to become ready, and returns when
// all answer. If one fails, it kills all and returns that error.
func startTogether(all ...*Process) error {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	var wg wait.Group
	for _, p := range all {
		wg.Go(func() {
			err := p.begin()
			if err == nil {
				err = p.awaitReady(ctx)
			}
			if err != nil {
				cancel(err)
			}
		})
	}
	wg.Wait()
	err := context.Cause(ctx)
	if err != nil {
		for _, p := range all {
			if p.done != nil { // one that was begun
				p.Kill()
			}
		}
	}
	return err
}

// begin starts the process, which does not answer yet.
func (p *Process) begin() error {
	log, err := os.OpenFile(filepath.Join(p.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd, done := exec.Command(p.path, p.args...), make(chan struct{})
	cmd.Dir, cmd.Stdout, cmd.Stderr = p.dir, log, log
	cmd.SysProcAttr = p.account.apply(dieWithParent())
	if err := spawn(cmd); err != nil {
		return err
	}
	p.cmd, p.done = cmd, done
	go func() {
		cmd.Wait()
		close(done)
	}()
	return nil
}

// awaitReady returns when the server answers. It fails if the server does not answer before
// startTimeout or the end of ctx.
func (p *Process) awaitReady(ctx context.Context) error {
	deadline := time.Now().Add(startTimeout)
	for {
		err := p.ready()
		if err == nil {
			return nil
		}
		select {
		case <-p.done:
			return fmt.Errorf("%s ended at once: %s", p.path, p.log())
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(2 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s doesn't answer: %w: %s", p.path, err, p.log())
		}
	}
}

func (p *Process) process() *Process { return p }

func (p *Process) log() string {
	b, err := os.ReadFile(filepath.Join(p.dir, "log"))
	if err != nil {
		return err.Error()
	}
	return tail(string(b), 1000)
}

// end kills the server, if it was started, and removes its data. A family first gives back the memory
// that it shares with others of the machine.
func (p *Process) end() {
	if p.done != nil && p.family {
		p.signalFamily(resume)
		p.cmd.Process.Signal(quit)
		select {
		case <-p.done:
		case <-time.After(startTimeout):
		}
	}
	if p.done != nil {
		p.Kill()
	}
	os.RemoveAll(p.dir)
}

// alive reports whether the process runs; a paused one does.
func (p *Process) alive() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// spawner starts all processes from one thread that never ends: a child that shall
// die with its parent dies with the thread that started it.
var spawner = sync.OnceValue(func() chan func() {
	c := make(chan func())
	go func() {
		runtime.LockOSThread()
		for f := range c {
			f()
		}
	}()
	return c
})

func spawn(cmd *exec.Cmd) error {
	done := make(chan error)
	spawner() <- func() { done <- cmd.Start() }
	return <-done
}

// portsGiven are the ports that freePort has returned.
var portsGiven sync.Map

// freePort returns a port on which no server listens now, and that it has not returned before. It lies below those that systems
// give to outgoing connections: a server that is restarted must find its port free.
func freePort() (int, error) { return freePorts(0) }

// freePorts returns such a port, above which another one is free by second, if that is not zero.
func freePorts(second int) (int, error) {
	var err error
	for range 100 {
		port := 12000 + rand.IntN(20000-second)
		_, given := portsGiven.LoadOrStore(port, true)
		if second > 0 && !given {
			_, given = portsGiven.LoadOrStore(port+second, true)
		}
		if given {
			continue
		}
		if err = errors.Join(isFree(port), isFree(port+second)); err == nil {
			return port, nil
		}
	}
	return 0, err
}

// isFree succeeds if no server listens on a port.
func isFree(port int) error {
	l, err := net.Listen("tcp", loopback(port))
	if err != nil {
		return err
	}
	return errors.Join(l.Close(), AwaitRefusal(loopback(port)))
}

// AwaitRefusal returns when no program listens at an address at which this one has just stopped. A child process has
// the sockets of its parent until it executes its program, which on a busy machine takes a while.
func AwaitRefusal(addr string) error {
	for end := time.Now().Add(startTimeout); time.Now().Before(end); time.Sleep(time.Millisecond) {
		conn, err := net.Dial("tcp", addr)
		if errors.Is(err, syscall.ECONNREFUSED) {
			return nil
		}
		if err == nil { // any other error may come of the socket's end in this moment
			conn.Close()
		}
	}
	return fmt.Errorf("a program listens at %s", addr)
}

// launch starts the server on a free port; prepare is called when that is known.
func (p *Process) launch(prepare func() error) error {
	return thrice(func() (err error) {
		if p.port, err = freePorts(p.second); err != nil {
			return err
		}
		if err := prepare(); err != nil {
			return err
		}
		return p.start()
	})
}

// thrice runs start until it succeeds: other processes may be quicker to take its ports.
func thrice(start func() error) error {
	var errs []error
	for range 3 {
		err := start()
		if err == nil {
			return nil
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// signalFamily sends a signal to the process, and to its children if it is one that forks.
func (p *Process) signalFamily(s os.Signal) error {
	self := []*os.Process{p.cmd.Process}
	if p.family {
		p.cmd.Process.Signal(pause) // it must not fork, nor see its children die
		awaitState(self, "TZX")
		children := p.children()
		for _, child := range children {
			child.Signal(s)
		}
		switch s {
		case kill:
			awaitState(children, "ZX")
		case pause:
			awaitState(children, "TZX")
		}
	}
	err := p.cmd.Process.Signal(s)
	if s == pause {
		awaitState(self, "TZX")
	}
	return err
}

// children returns the processes that the process has started; none where the system does not
// tell.
func (p *Process) children() []*os.Process {
	list, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", p.PID()))
	var children []*os.Process
	for _, field := range strings.Fields(string(list)) {
		if pid, err := strconv.Atoi(field); err == nil {
			if child, err := os.FindProcess(pid); err == nil {
				children = append(children, child)
			}
		}
	}
	return children
}

// awaitState waits until processes are in one of some states (T is stopped, Z dead and not waited
// for, X dead) or gone. Dead processes hold no resources.
func awaitState(all []*os.Process, states string) {
	deadline := time.Now().Add(startTimeout)
	for _, p := range all {
		for time.Now().Before(deadline) && !inState(p.Pid, states) {
			time.Sleep(100 * time.Microsecond)
		}
	}
}

// inState reports whether all threads of a process are in one of some states, or gone. It is true
// where the system does not tell.
func inState(pid int, states string) bool {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	for _, thread := range threads {
		stat, _ := os.ReadFile(thread)
		_, rest, _ := strings.Cut(string(stat), ") ")
		state, _, _ := strings.Cut(rest, " ")
		if !strings.Contains(states, state) {
			return false
		}
	}
	return true
}

// Freeze stops a process, and returns once none of its threads runs: a signal reaches them one after the other.
func Freeze(pid int) error {
	p, err := os.FindProcess(pid)
	if err == nil {
		err = p.Signal(pause)
	}
	if err == nil {
		awaitState([]*os.Process{p}, "TZX")
	}
	return err
}

// Spawn starts a child process that ends with the test process, however that dies,
// where the system can do this.
func Spawn(cmd *exec.Cmd) error {
	cmd.SysProcAttr = dieWithParent()
	return spawn(cmd)
}
