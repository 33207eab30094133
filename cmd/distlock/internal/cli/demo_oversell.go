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
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/distlock/distlock"
)

const oversellHelp = `A shop has a few items. Buyers, each a process of its own, read what is left, think for a
moment, and write back one less: first without a lock, then with one. Without a lock they
overwrite each other's sales, and the shop sells items again that it sold before.

The locks are in a temporary SQLite file unless --url or ` + urlVariable + ` is given, and with --local.

Exit code 1: with the lock, the shop did not sell exactly its stock, or the fences did
not increase from sale to sale.`

const oversellNext = `
Next:  a command of yours under a lock    distlock run --url URL NAME -- COMMAND
       a server, its page and busy locks  distlock demo serve
`

// The shop of the demo.
const (
	shopItems  = 5
	shopBuyers = 4
	thinkTime  = 100 * time.Millisecond // between reading the stock and writing it
)

func (a *app) oversellCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "oversell",
		Short:   "A shop sells more than it has, until it takes a lock",
		Long:    oversellHelp,
		Example: "  distlock demo oversell --url redis://localhost:6379",
		Args:    exactly(0, "none"),
		RunE:    func(*cobra.Command, []string) error { return a.oversell() },
	}
}

// buyerCommand is for the processes of the demo.
func (a *app) buyerCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "buyer",
		Short:  "Be a buyer of the demo oversell",
		Hidden: true,
		Args:   exactly(0, "none"),
		RunE:   func(*cobra.Command, []string) error { return a.buyer(os.Stdin) },
	}
}

func (a *app) oversell() error {
	dir, err := os.MkdirTemp("", "distlock-demo-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := a.chooseDemoURL(dir); err != nil {
		return err
	}
	// The client only finds out, once and before all buyers, whether the server can be reached.
	return a.withClient(func(ctx context.Context, _ *distlock.Client) error {
		a.printf("%d items, %d buyers. Without a lock:\n", shopItems, shopBuyers)
		sales, err := a.trial(ctx, "")
		if err != nil {
			return err
		}
		a.printf("%d sold: %d too many.\n\nWith a lock:\n", len(sales), len(sales)-shopItems)
		if sales, err = a.trial(ctx, a.url.s); err != nil {
			return err
		}
		if err := judge(sales); err != nil {
			return err
		}
		a.printf("%d sold, and each fence is greater than the one before.\n%s", len(sales), oversellNext)
		return nil
	})
}

// chooseDemoURL sets the URL of the locks, which all processes must be able to reach.
func (a *app) chooseDemoURL(dir string) error {
	if a.local && a.url.set {
		return errLocalURL()
	}
	u, err := a.givenURL()
	if a.local || err == nil && u == "" {
		u, err = "sqlite:"+filepath.ToSlash(filepath.Join(dir, "locks.db")), nil
	}
	if strings.HasPrefix(u, "mem:") {
		return usage("demo: mem: stores locks in the memory of one process, and there are several; give another --url, or none")
	}
	a.url, a.local = text{s: u, set: true}, false
	return err
}

// shop sells to buyers, which are processes of this program with the command "demo buyer". They talk JSON with it over
// their standard input and output: each gets the URL of the locks, sends sales, and gets the stock that is left. It believes
// what they read before.
type shop struct {
	printf func(format string, args ...any)
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
func (a *app) trial(ctx context.Context, url string) ([]sale, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s := &shop{printf: a.printf, left: shopItems}
	s.coming.Add(shopBuyers)
	var buyers sync.WaitGroup
	for n := range shopBuyers {
		buyers.Go(func() {
			if err := s.serve(ctx, n+1, url); err != nil {
				cancel(err)
			}
		})
	}
	buyers.Wait()
	return s.sales, context.Cause(ctx)
}

// serve starts a buyer, and answers it once all are ready, until it leaves.
func (s *shop) serve(ctx context.Context, buyer int, url string) error {
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
	for m, talks := (sale{}), to.Encode(url) == nil; talks && from.Decode(&m) == nil; m = (sale{}) {
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
	s.printf("  buyer %d buys item %d%s%s\n", buyer, m.Items, fence, note)
	s.sales, s.left = append(s.sales, m), m.Items-1
	return s.left
}

// judge returns an error if the lock did not work.
func judge(sales []sale) error {
	increasing, last := true, uint64(0)
	for _, m := range sales {
		increasing, last = increasing && m.Fence > last, m.Fence
	}
	if len(sales) != shopItems || !increasing {
		return exit(exitFailure, "demo: under the lock %d of %d items were sold, with fences that increase: %t", len(sales), shopItems, increasing)
	}
	return nil
}

// buyer is the main function of a buyer.
func (a *app) buyer(in io.Reader) error {
	ctx, cancel := interruptible()
	defer cancel()
	to, from := json.NewEncoder(a.out), json.NewDecoder(in)
	var url string // of the locks; empty: buy without a lock. Other users could see an argument.
	if err := from.Decode(&url); err != nil {
		return usage("demo buyer: no order on standard input; want: distlock demo oversell")
	}
	do := func(ctx context.Context, f func(context.Context) error) error { return f(ctx) }
	if url != "" {
		a.url = text{s: url, set: true}
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
				time.Sleep(thinkTime)
				left, err = ask(sale{Items: left, Fence: distlock.Fence(ctx)})
			}
			return err
		})
	}
	return unlessCaught(ctx, err)
}
