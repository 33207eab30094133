package bench

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"
)

// childEnv makes a run of the test binary another process of a measurement. The variable has the job.
// All other data goes through standard input and output, as one line of JSON per message.
const childEnv = "DISTLOCK_BENCH_CHILD"

// job is the task of a child.
type job struct {
	Task       string
	Contender  string
	At         string
	Addr       string
	Name       string
	Goroutines int
	TTL, Time  time.Duration
	Leases     int
}

// tasks are the functions that children run with a client of the contender.
var tasks map[string]func(j job, cl client, p *peer) error

func init() {
	tasks = map[string]func(job, client, *peer) error{
		"contend": contendInChild,
		"wait":    waitInChild,
		"hold":    holdInChild,
		"turns":   turnsInChild,
		"shop":    shopInChild,
		"token":   tokenInChild,
		"lead":    leadInChild,
	}
}

// peer is the other end of a child's pipes. Parent and child wait for each other at each step.
type peer struct {
	in  *json.Decoder
	out *json.Encoder
}

func newPeer(in io.Reader, out io.Writer) *peer {
	return &peer{json.NewDecoder(bufio.NewReader(in)), json.NewEncoder(out)}
}

func (p *peer) say(v any) error     { return p.out.Encode(v) }
func (p *peer) receive(v any) error { return p.in.Decode(v) }

// ready reports that the child is ready, and waits for the parent's signal.
func (p *peer) ready() error {
	if err := p.say("ready"); err != nil {
		return err
	}
	return p.await()
}

func (p *peer) await() error {
	var word string
	return p.receive(&word)
}

// runChild runs the job in the environment. It ends with its parent, whose end closes the pipes.
func runChild(spec string) error {
	var j job
	if err := json.Unmarshal([]byte(spec), &j); err != nil {
		return err
	}
	c, err := contenderNamed(j.At, j.Contender)
	if err != nil {
		return err
	}
	cl, err := c.open(j.Addr, j.TTL)
	if err != nil {
		return err
	}
	return tasks[j.Task](j, cl, newPeer(os.Stdin, os.Stdout))
}

// child is a child process, seen from its parent.
type child struct {
	*peer
	cmd   *exec.Cmd
	stdin io.Closer
}

// startChild returns when the child is ready.
func startChild(j job) (*child, error) {
	spec, err := json.Marshal(j)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), childEnv+"="+string(spec))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	c := &child{newPeer(out, in), cmd, in}
	if err := c.await(); err != nil {
		c.kill()
		return nil, fmt.Errorf("child for %s %s: %w", j.Contender, j.Task, err)
	}
	return c, nil
}

func (c *child) proceed() error { return c.say("go") }

// kill ends the child. Its locks end by themselves.
func (c *child) kill() {
	c.stdin.Close()
	c.cmd.Process.Kill()
	c.cmd.Wait()
}
