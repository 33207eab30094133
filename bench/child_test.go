package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
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

// worker is the state of one goroutine in a run of fixed duration.
type worker struct {
	end   *atomic.Bool
	n     int64
	times histogram
}

func (w *worker) over() bool { return w.end.Load() }

func (w *worker) count(d time.Duration) {
	w.n++
	w.times.add(d)
}

// during runs f in several goroutines for d, and then cancels their contexts. Each goroutine has its
// own cancellable context, like a request to a server. An error ends the run, unless the end of the run
// caused it.
func during(d time.Duration, goroutines int, f func(ctx context.Context, g int, w *worker) error) (*tally, error) {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	var end atomic.Bool
	var wg sync.WaitGroup
	failed := make(chan error, goroutines)
	workers := make([]worker, goroutines)
	start := time.Now()
	for g := range workers {
		w := &workers[g]
		w.end = &end
		wg.Go(func() {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			if err := f(ctx, g, w); err != nil && !end.Load() {
				failed <- fmt.Errorf("goroutine %d: %w", g, err)
			}
		})
	}
	var err error
	select {
	case <-time.After(d):
	case err = <-failed:
	}
	end.Store(true)
	t := &tally{Elapsed: time.Since(start)}
	stop()
	wg.Wait()
	for i := range workers {
		t.Each = append(t.Each, workers[i].n)
		t.Times.merge(&workers[i].times)
	}
	return t, err
}

const (
	processes  = 4
	perProcess = 4
)

func inProcesses(at string, among []contender) scenario {
	return scenario{
		name: at + "/processes", at: at, title: "One lock, 4 processes of 4 goroutines, empty section",
		contenders: among, measure: measureProcesses,
	}
}

func measureProcesses(r *rig, c contender) (figures, error) {
	return measureTogether(r, c, job{Task: "contend", Goroutines: perProcess})
}

// measureTogether has processes do the same job.
func measureTogether(r *rig, c contender, j job) (figures, error) {
	j.Contender, j.At, j.Addr, j.Name, j.TTL, j.Time = c.name, r.at, r.Addr(), freshName(), ttl, r.time
	var children []*child
	for range processes {
		p, err := startChild(j)
		if err != nil {
			return nil, err
		}
		defer p.kill()
		children = append(children, p)
	}
	before, err := r.usage(c)
	if err != nil {
		return nil, err
	}
	all, each, err := letContend(children)
	if err != nil {
		return nil, err
	}
	after, err := r.usage(c)
	if err != nil {
		return nil, err
	}
	return append(contention(all, after.sent-before.sent),
		figure{"p99.9-ms", millis(all.Times.quantile(.999))},
		figure{"max/min process", spread(each)},
		figure{"max/min goroutine", spread(all.Each)}), nil
}

// letContend starts all children at once. It returns their common results, and the count of each.
func letContend(children []*child) (all *tally, each []int64, err error) {
	for _, p := range children {
		if err := p.proceed(); err != nil {
			return nil, nil, err
		}
	}
	all = &tally{}
	for _, p := range children {
		var t tally
		if err := p.receive(&t); err != nil {
			return nil, nil, err
		}
		each = append(each, t.total())
		all.Each = append(all.Each, t.Each...)
		all.Times.merge(&t.Times)
		all.Elapsed = max(all.Elapsed, t.Elapsed)
	}
	return all, each, nil
}

func contendInChild(j job, cl client, p *peer) error {
	// The warm-up runs without contention.
	if err := warmUpAlone(cl); err != nil {
		return err
	}
	if err := p.ready(); err != nil {
		return err
	}
	t, err := contend(cl, j.Name, j.Goroutines, j.Time)
	if err != nil {
		return err
	}
	return p.say(t)
}
