//go:build linux

package chaos

import (
	"context"
	"encoding/json"
	"io"
	"math/rand/v2"
	"net/rpc"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/distlock/distlock"
	_ "github.com/distlock/distlock/backend/all"
	"github.com/distlock/distlock/backend/redislock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/trace"
	"github.com/distlock/distlock/proof/internal/judge"
	goredis "github.com/redis/go-redis/v9"
	"golang.org/x/sys/unix"
)

// now returns the time that all processes of the machine share.
func now() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(err)
	}
	return t.Nano()
}

// The locks. Faults aim at the hot one. The brief ones are never held for long, so that there are many holds of them.
const hot = "hot"

var (
	cold  = []string{"cold0", "cold1", "cold2"}
	brief = []string{"brief0", "brief1", "brief2"}
)

// config is a worker's configuration, which its parent sends.
type config struct {
	URL        string // of the backend
	Client     string // "go-redis": the program's own client; empty: none
	reach      func(process int) (url string)
	Socket     string // of the register
	Process    int
	Goroutines int
	Brief      int // how many more goroutines want the brief locks
	Mixed      int // … and the mixed ones
	TTL        time.Duration
	Trace      bool // it notes what it asks the backend about the hot lock, too
}

// worker is a process whose goroutines compete for locks. It uses no more of distlock than any program can.
type worker struct {
	config
	ids      atomic.Int64
	mu       sync.Mutex // guards out
	out      *json.Encoder
	register *rpc.Client
	trace    *trace.Recorder // nil: it has none
}

// event is a line that a worker writes to its parent.
type event struct {
	Kind  string // "grant", "end", "stall", "trace", or the error of a Lock
	Hold  judge.Hold
	Trace *trace.Event `json:",omitempty"`
}

func (w *worker) emit(kind string, h judge.Hold) { w.write(event{Kind: kind, Hold: h}) }

func (w *worker) write(e event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.out.Encode(e); err != nil {
		os.Exit(1) // the parent has ended
	}
}

// run works until the parent closes stdin, then finishes its holds and releases everything.
func (w *worker) run() error {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	go func() {
		io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	w.out = json.NewEncoder(os.Stdout)
	var err error
	if w.register, err = rpc.Dial("unix", w.Socket); err != nil {
		return err
	}
	var locks *distlock.Client
	for locks == nil {
		locks, err = w.open(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			w.emit(err.Error(), judge.Hold{Process: w.Process, Call: now(), End: now()})
			time.Sleep(50 * time.Millisecond)
		}
	}
	go measureStalls(nil, func(from, to int64) {
		w.emit("stall", judge.Hold{Process: w.Process, Call: from, End: to})
	})
	var wg sync.WaitGroup
	for range w.Goroutines {
		wg.Go(func() {
			for ctx.Err() == nil {
				name := hot
				if rand.IntN(4) == 0 {
					name = pick(cold)
				}
				w.turn(ctx, locks, name, w.works())
			}
		})
	}
	for range w.Brief {
		wg.Go(func() {
			for ctx.Err() == nil {
				w.turn(ctx, locks, pick(brief), rand.N(time.Millisecond))
				time.Sleep(rand.N(50 * time.Millisecond))
			}
		})
	}
	for range w.Mixed {
		wg.Go(func() {
			for ctx.Err() == nil {
				w.mixedTurn(ctx, locks)
				time.Sleep(rand.N(50 * time.Millisecond))
			}
		})
	}
	wg.Wait()
	locks.Close() // fails if releases had no answer; the parent looks at what is left
	return nil
}

func (w *worker) open(ctx context.Context) (*distlock.Client, error) {
	options := &distlock.Options{TTL: w.TTL}
	b, err := w.backend(ctx)
	if err != nil {
		return nil, err
	}
	if !w.Trace {
		return distlock.New(b, options)
	}
	w.trace = trace.New(func() time.Duration { return time.Duration(now()) }, func(e trace.Event) {
		if e.Name == hot {
			e.Call += w.Process * 1_000_000 // a process numbers its own calls
			w.write(event{Kind: "trace", Trace: &e})
		}
	})
	return distlock.New(w.trace.Backend(b), options)
}

// backend opens the URL, or makes a backend of a client that a program has already.
func (w *worker) backend(ctx context.Context) (driver.Backend, error) {
	if w.Client == "" {
		return driver.Open(ctx, w.URL)
	}
	o, err := goredis.ParseURL(w.URL)
	if err != nil {
		return nil, err
	}
	return redislock.NewGoRedis(goredis.NewClient(o), nil)
}

// measureStalls calls longer for each time in which the machine did not let this process run that is longer than those before,
// until quit is closed.
func measureStalls(quit <-chan struct{}, longer func(from, to int64)) {
	for longest := int64(5 * time.Millisecond); ; {
		from := now()
		select {
		case <-quit:
			return
		case <-time.After(time.Millisecond):
		}
		if to := now(); to-from > longest {
			longest = to - from
			longer(from, to)
		}
	}
}

func pick(names []string) string { return names[rand.IntN(len(names))] }

// turn takes a lock, updates the register under it, which takes so long, and releases it.
func (w *worker) turn(ctx context.Context, locks *distlock.Client, name string, works time.Duration) {
	h := judge.Hold{Process: w.Process, ID: int(w.ids.Add(1)), Name: name, Call: now()}
	lease, err := locks.Mutex(name).Lock(ctx)
	h.Grant = now()
	if err != nil {
		h.End = h.Grant
		w.emit(err.Error(), h)
		time.Sleep(10 * time.Millisecond)
		return
	}
	h.Fence = lease.Fence()
	w.held(lease, h, func() {
		if w.trace != nil {
			w.trace.Lease(lease)
		}
		w.update(lease, works)
	})
	lease.Unlock(context.Background()) // fails if the lease was lost, or without an answer
}

// deadline returns the deadline of a lease in the time of now.
func deadline(lease *distlock.Lease) int64 {
	t := now()
	return t + int64(time.Until(lease.Deadline()))
}

// update adds one to both registers, as careful programs do: it reads, works, looks whether it still has the lock, and
// writes. The fence is registered before the first read.
func (w *worker) update(lease *distlock.Lease, works time.Duration) {
	a := Access{Process: w.Process, PID: os.Getpid(), Name: lease.Name(), Fence: lease.Fence(), Works: works}
	w.call("Register.Enter", a, &a.Numbers)
	select {
	case <-time.After(works):
	case <-lease.Context().Done():
	}
	if lease.Err() != nil {
		return
	}
	a.Deadline = deadline(lease)
	var ok bool
	if a.Name == hot {
		w.call("Register.Look", a, &ok)
	}
	w.call("Register.Write", a, &ok)
}

// works says for how long: mostly for a moment, and now and then so long that the lease must be renewed.
func (w *worker) works() time.Duration {
	if rand.IntN(6) == 0 {
		return w.TTL*4/10 + rand.N(w.TTL*8/10)
	}
	return time.Millisecond + rand.N(15*time.Millisecond)
}

func (w *worker) call(method string, a Access, answer any) {
	if w.register.Call(method, a, answer) != nil {
		os.Exit(1) // the parent has ended
	}
}
