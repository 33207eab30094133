// Package oversell is a demonstration: a shop sells more than it has, until its buyers take a lock.
//
// Buyers are processes of the program that shows it. They talk JSON with it over their standard input and output: each gets
// the URL of the locks, sends sales, and gets the stock that is left.
package oversell

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

// The shop.
const (
	items  = 5
	buyers = 4
	think  = 100 * time.Millisecond // between reading the stock and writing it
)

// ErrLock means that the lock did not work.
var ErrLock = errors.New("the lock did not work")

// BuyerError is that of a buyer's process.
type BuyerError struct {
	Code int // with which it ended; 1 if it ended by a signal
	Text string
}

func (e *BuyerError) Error() string { return e.Text }

// Demo runs the shop twice, and shows each sale as it happens.
type Demo struct {
	Printf func(format string, args ...any)
	Buyer  []string // the arguments with which this program calls Buy
}

// Run lets the buyers buy all items without a lock, and then under locks at url, which all processes must reach.
func (d Demo) Run(ctx context.Context, url string) error {
	d.Printf("%d items, %d buyers, each a process. Without a lock:\n", items, buyers)
	sales, err := d.trial(ctx, "")
	if err != nil {
		return err
	}
	d.Printf("%d sold: %d too many.\n\nWith a lock:\n", len(sales), len(sales)-items)
	if sales, err = d.trial(ctx, url); err != nil {
		return err
	}
	if err := judge(sales); err != nil {
		return err
	}
	d.Printf("%d sold, and each fence is greater than the one before.\n", len(sales))
	return nil
}

// shop believes what buyers read before.
type shop struct {
	Demo
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

// trial lets the buyers buy until all is sold, with a lock if url is not empty.
func (d Demo) trial(ctx context.Context, url string) ([]sale, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s := &shop{Demo: d, left: items}
	s.coming.Add(buyers)
	var all sync.WaitGroup
	for n := range buyers {
		all.Add(1)
		go func() {
			defer all.Done()
			if err := s.serve(ctx, n+1, url); err != nil {
				cancel(err)
			}
		}()
	}
	all.Wait()
	return s.sales, context.Cause(ctx)
}

// serve starts a buyer, and answers it once all are ready, until it leaves.
func (s *shop) serve(ctx context.Context, buyer int, url string) error {
	ready := sync.OnceFunc(s.coming.Done)
	defer ready()
	self, err := os.Executable()
	cmd, stderr := exec.CommandContext(ctx, self, s.Buyer...), &strings.Builder{}
	cmd.Stderr = stderr
	in, inErr := cmd.StdinPipe()
	out, outErr := cmd.StdoutPipe()
	if err := errors.Join(err, inErr, outErr, cmd.Start()); err != nil {
		return err
	}
	to, from := json.NewEncoder(in), json.NewDecoder(out)
	for m, talks := (sale{}), to.Encode(url) == nil; talks && from.Decode(&m) == nil; m = (sale{}) {
		ready()
		s.coming.Wait()
		talks = to.Encode(s.answer(buyer, m)) == nil
	}
	in.Close()
	if err := cmd.Wait(); err != nil {
		return &BuyerError{max(cmd.ProcessState.ExitCode(), 1), cmp.Or(strings.TrimSpace(stderr.String()), err.Error())}
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
	note := ""
	if m.Fence > 0 {
		note = fmt.Sprintf("   fence %d", m.Fence)
	}
	if slices.ContainsFunc(s.sales, func(o sale) bool { return o.Items == m.Items }) {
		note += "   SOLD BEFORE"
	}
	s.Printf("  buyer %d buys item %d%s\n", buyer, m.Items, note)
	s.sales, s.left = append(s.sales, m), m.Items-1
	return s.left
}

// judge returns an error if the lock did not work.
func judge(sales []sale) error {
	increasing, last := true, uint64(0)
	for _, m := range sales {
		increasing, last = increasing && m.Fence > last, m.Fence
	}
	if len(sales) != items || !increasing {
		return fmt.Errorf("%w: %d of %d items were sold, with fences that increase: %t", ErrLock, len(sales), items, increasing)
	}
	return nil
}

// ErrNoOrder means that a buyer was started by something else than a Demo.
var ErrNoOrder = errors.New("no order on standard input")

// Buy is what the process of a buyer does, with its standard input and output. Open opens the locks at a URL.
func Buy(ctx context.Context, in io.Reader, out io.Writer, open func(context.Context, string) (*distlock.Client, error)) error {
	to, from := json.NewEncoder(out), json.NewDecoder(in)
	var url string // empty: buy without a lock. Other users could see an argument.
	if err := from.Decode(&url); err != nil {
		return ErrNoOrder
	}
	do := func(ctx context.Context, f func(context.Context) error) error { return f(ctx) }
	if url != "" {
		c, err := open(ctx, url)
		if err != nil {
			return err
		}
		defer c.Close()
		mutex := c.Mutex("shop:item")
		do = func(ctx context.Context, f func(context.Context) error) error { return mutex.Do(ctx, f) }
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
				time.Sleep(think)
				left, err = ask(sale{Items: left, Fence: distlock.Fence(ctx)})
			}
			return err
		})
	}
	return err
}
