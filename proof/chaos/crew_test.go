//go:build linux

package chaos

import (
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
	"github.com/distlock/distlock/internal/testkit/trace"
	"github.com/distlock/distlock/proof/internal/judge"
)

// workerEnv has a worker's configuration, in the environment of a process of the test binary.
const workerEnv = "DISTLOCK_CHAOS_WORKER"

func TestMain(m *testing.M) {
	s3Account()
	if text := os.Getenv(workerEnv); text != "" {
		var w worker
		err := json.Unmarshal([]byte(text), &w.config)
		if err == nil {
			err = w.run()
		}
		if err != nil {
			os.Stderr.WriteString(err.Error() + "\n")
			os.Exit(1)
		}
		os.Exit(0)
	}
	code := testserver.Run(m)
	os.Remove(cliPath())
	os.Exit(code)
}

// crew is the workers of a cell, and what they saw.
type crew struct {
	t       *testing.T
	config  config
	members []*member // that run

	mu      sync.Mutex
	holds   map[[2]int]judge.Hold // by process and ID
	errors  map[string]int        // of calls of Lock
	trace   []trace.Event
	last    int64         // when a lock that is not brief was granted last
	gaveUp  time.Duration // the longest that a call waited before the workers were dismissed
	stall   time.Duration // the longest that the machine did not let a worker run
	own     time.Duration // … that it did not let this process run, in which the proxies are
	started int
}

type member struct {
	process int
	cmd     *exec.Cmd
	stdin   io.Closer
	done    chan struct{} // closed when all its events have been read
}

func hire(t *testing.T, config config, processes int) *crew {
	c := &crew{t: t, config: config, holds: map[[2]int]judge.Hold{}, errors: map[string]int{}}
	for range processes {
		c.start()
	}
	quit := make(chan struct{})
	go measureStalls(quit, c.stalled)
	t.Cleanup(func() {
		close(quit)
		for len(c.members) > 0 {
			c.kill()
		}
	})
	return c
}

// stalled notes that the machine did not let this process run.
func (c *crew) stalled(from, to int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.own = time.Duration(to - from)
}

// start starts one worker more.
func (c *crew) start() {
	c.t.Helper()
	c.started++
	c.config.Process = c.started
	if c.config.reach != nil {
		c.config.URL = c.config.reach(c.started)
	}
	text := must.Get(json.Marshal(c.config))(c.t)
	cmd := exec.Command(os.Args[0])
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "LD_PRELOAD=") { // a clock that jumps is the server's
			cmd.Env = append(cmd.Env, v)
		}
	}
	cmd.Env = append(cmd.Env, workerEnv+"="+string(text))
	cmd.Stderr = os.Stderr
	stdin := must.Get(cmd.StdinPipe())(c.t)
	stdout := must.Get(cmd.StdoutPipe())(c.t)
	must.OK(c.t, testserver.Spawn(cmd))
	m := &member{c.started, cmd, stdin, make(chan struct{})}
	c.members = append(c.members, m)
	go c.listen(m, stdout)
}

func (c *crew) listen(m *member, stdout io.Reader) {
	defer close(m.done)
	for events := json.NewDecoder(stdout); ; {
		var e event
		if err := events.Decode(&e); err != nil {
			return
		}
		took := time.Duration(e.Hold.End - e.Hold.Call)
		c.mu.Lock()
		switch e.Kind {
		case "grant", "end":
			c.holds[[2]int{e.Hold.Process, e.Hold.ID}] = e.Hold
			if !isBrief(e.Hold) {
				c.last = max(c.last, e.Hold.Grant)
			}
		case "trace":
			c.trace = append(c.trace, *e.Trace)
		case "stall":
			c.stall = max(c.stall, took)
		default:
			c.errors[e.Kind]++
			c.gaveUp = max(c.gaveUp, took)
		}
		c.mu.Unlock()
	}
}

// kill kills the worker that has run for longest. Its holds last until now.
func (c *crew) kill() {
	m := c.members[0]
	c.members = c.members[1:]
	end := now()
	m.cmd.Process.Kill()
	<-m.done
	m.cmd.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	for key, h := range c.holds {
		if key[0] == m.process && h.End == 0 {
			h.End = end
			c.holds[key] = h
		}
	}
}

// dismiss lets all workers finish.
func (c *crew) dismiss() {
	for _, m := range c.members {
		m.stdin.Close()
	}
	for _, m := range c.members {
		select {
		case <-m.done:
		case <-time.After(4 * time.Minute):
			c.t.Errorf("worker %d does not end", m.process)
			m.cmd.Process.Signal(syscall.SIGQUIT) // shows where it is
			<-m.done
		}
		if err := m.cmd.Wait(); err != nil {
			c.t.Errorf("worker %d: %v", m.process, err)
		}
	}
	c.members = nil
}

// seen returns the holds so far. Those that are not over last until now.
func (c *crew) seen() (holds []judge.Hold) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, h := range c.holds {
		if h.End == 0 {
			h.End = now()
		}
		holds = append(holds, h)
	}
	return holds
}

// isBrief reports whether a hold says nothing about how long a lock is waited for: others of its kind are granted all the time.
func isBrief(h judge.Hold) bool {
	return slices.Contains(brief, h.Name) || slices.Contains(mixed, h.Name)
}

// awaitGrant returns when a lock that is not brief was granted since then, or reports that none was in the time.
func (c *crew) awaitGrant(since int64, most time.Duration) bool {
	granted := func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.last >= since
	}
	for end := time.Now().Add(most); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if granted() {
			return true
		}
	}
	return false
}
