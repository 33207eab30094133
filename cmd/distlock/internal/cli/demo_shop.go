package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/distlock/distlock"
)

// shop sells to buyers, which are processes of this program with the command "demo buyer". They talk JSON with it over
// their standard input and output: each sends sales, and gets the stock that is left. It believes what they read before.
type shop struct {
	tell   func(format string, args ...any)
	coming sync.WaitGroup // buyers that are not ready yet

	mu    sync.Mutex
	left  int
	sales []sale
}

// sale is a message of a buyer. It sells the last of as many items; without items, it only asks for the stock.
type sale struct {
	Items int
	Fence uint64
}

// order is the first message to a buyer. It is no argument, since other users can see arguments.
type order struct {
	URL   string // of the locks; empty: buy without a lock
	Think time.Duration
}

// trial lets the buyers buy until all is sold, with a lock if url is not empty.
func (o *demoOptions) trial(ctx context.Context, url string, tell func(string, ...any)) (tally, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s := &shop{tell: tell, left: o.stock}
	s.coming.Add(o.processes)
	var buyers sync.WaitGroup
	for n := range o.processes {
		buyers.Go(func() {
			if err := s.serve(ctx, n+1, order{url, o.think}); err != nil {
				cancel(err)
			}
		})
	}
	buyers.Wait()
	return s.tally(o.stock), context.Cause(ctx)
}

// serve starts a buyer, and answers it once all are ready, until it leaves.
func (s *shop) serve(ctx context.Context, buyer int, what order) error {
	ready := sync.OnceFunc(s.coming.Done)
	defer ready()
	self, err := os.Executable()
	cmd, stderr := exec.CommandContext(ctx, self, "demo", "buyer"), &strings.Builder{}
	cmd.Stderr = stderr
	in, inErr := cmd.StdinPipe()
	out, outErr := cmd.StdoutPipe()
	if err := errors.Join(err, inErr, outErr, cmd.Start()); err != nil {
		return err
	}
	to, from := json.NewEncoder(in), json.NewDecoder(out)
	for m, talks := (sale{}), to.Encode(what) == nil; talks && from.Decode(&m) == nil; m = (sale{}) {
		ready()
		s.coming.Wait()
		talks = to.Encode(s.answer(buyer, m)) == nil
	}
	in.Close()
	if err := cmd.Wait(); err != nil {
		why := cmp.Or(reason(errors.New(strings.TrimSpace(stderr.String()))), err.Error())
		return exit(max(cmd.ProcessState.ExitCode(), exitFailure), "demo: %s", why)
	}
	return nil
}

// answer writes a sale down, if it is one, and returns the stock.
func (s *shop) answer(buyer int, m sale) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m.Items == 0 {
		return s.left
	}
	again := slices.ContainsFunc(s.sales, func(o sale) bool { return o.Items == m.Items })
	fence, note := "", map[bool]string{true: "   SOLD BEFORE"}[again]
	if m.Fence > 0 {
		fence = fmt.Sprintf("   fence %d", m.Fence)
	}
	s.tell("  buyer %d buys item %d%s%s\n", buyer, m.Items, fence, note)
	s.sales, s.left = append(s.sales, m), m.Items-1
	return s.left
}

// tally is a trial in the output of --json.
type tally struct {
	Stock      int  `json:"stock"`
	Sold       int  `json:"sold"`
	Oversold   int  `json:"oversold"`
	Increasing bool `json:"fences_increasing"`
}

func (s *shop) tally(stock int) tally {
	increasing := slices.IsSortedFunc(s.sales, func(next, last sale) int { return cmp.Compare(next.Fence, last.Fence+1) })
	locked := !slices.ContainsFunc(s.sales, func(m sale) bool { return m.Fence == 0 })
	return tally{stock, len(s.sales), max(0, len(s.sales)-stock), increasing && locked}
}

// judge returns an error if the lock did not work.
func (t tally) judge() error {
	if t.Sold != t.Stock || !t.Increasing {
		return exit(exitFailure, "demo: under the lock %d of %d items were sold, with fences that increase: %t", t.Sold, t.Stock, t.Increasing)
	}
	return nil
}

// buyer is the main function of a buyer.
func (a *app) buyer(in io.Reader) error {
	ctx, cancel := interruptible()
	defer cancel()
	to, from := json.NewEncoder(a.out), json.NewDecoder(in)
	var what order
	if err := from.Decode(&what); err != nil {
		return usage("demo buyer: no order on standard input; want: distlock demo oversell")
	}
	do := func(ctx context.Context, f func(context.Context) error) error { return f(ctx) }
	if what.URL != "" {
		a.url = text{s: what.URL, set: true}
		c, err := a.client(ctx)
		if err != nil {
			return err
		}
		defer c.Close()
		do = c.Mutex("shop:item").Do
	}
	ask := func(m sale) (left int, err error) {
		if err = to.Encode(m); err == nil {
			err = from.Decode(&left)
		}
		return left, err
	}
	left, err := ask(sale{})
	for err == nil && left > 0 {
		err = do(ctx, func(ctx context.Context) (err error) {
			if left, err = ask(sale{}); err == nil && left > 0 {
				time.Sleep(what.Think)
				left, err = ask(sale{Items: left, Fence: distlock.Fence(ctx)})
			}
			return err
		})
	}
	return unlessCaught(ctx, err)
}
