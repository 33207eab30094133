package cli

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

const oversellHelp = `A shop has a few items. Buyers in several processes read the stock, think for a moment,
and write back one less: first without a lock, then with one. Without a lock they
overwrite each other's sales, and the shop sells more than it has.

The locks are stored in a temporary SQLite file unless --url or ` + urlVariable + ` is given,
and with --local.
With --json, only the tallies are printed:
  {"without_lock":{"stock":N,"sold":N,"oversold":N},
   "with_lock":{"stock":N,"sold":N,"oversold":0,"fences_increasing":true}}

Exit code 1: with the lock, the shop did not sell exactly its stock, or the fences did
not increase from sale to sale.`

// demoOptions are the flags of the demo.
type demoOptions struct {
	stock, processes, workers int
	think                     time.Duration
	json                      bool
	svg                       string
	timeout                   time.Duration
	url                       string
	dir                       string // of the shops, and of the locks without a server
}

func (a *app) demoCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "See what a lock is for",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usage("demo: no demo %q; want oversell or serve", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.oversellCommand(), a.demoServeCommand(), a.buyersCommand())
	return cmd
}

func (a *app) oversellCommand() *cobra.Command {
	o := &demoOptions{stock: 50, processes: 4, workers: 4, think: 2 * time.Millisecond, timeout: time.Minute}
	cmd := &cobra.Command{
		Use:   "oversell",
		Short: "A shop sells more than it has, until it takes a lock",
		Long:  oversellHelp,
		Example: `  distlock demo oversell
  distlock demo oversell --url redis://localhost:6379 --svg held.svg`,
		Args: exactly(0, "none"),
		RunE: func(*cobra.Command, []string) error { return a.oversell(o) },
	}
	f := cmd.Flags()
	f.Var(number(&o.stock, 1, 100_000), "stock", "items in the shop")
	f.Var(number(&o.processes, 1, 64), "processes", "processes with buyers")
	f.Var(number(&o.workers, 1, 256), "workers", "buyers in each process")
	f.Var(duration(&o.think, true), "think", "how long a buyer thinks between reading the stock and writing it")
	f.Var(duration(&o.timeout, false), "timeout", "for both runs together")
	f.BoolVar(&o.json, "json", false, "print the tallies as JSON")
	f.Var(nonEmpty(&o.svg), "svg", "draw a chart of the holds into this `FILE`")
	return cmd
}

func (a *app) oversell(o *demoOptions) (err error) {
	ctx, cancel := interruptible()
	defer cancel()
	defer func() { err = unlessCaught(ctx, err) }()
	ctx, cancel = context.WithTimeout(ctx, o.timeout)
	defer cancel()
	dir, err := os.MkdirTemp("", "distlock-demo-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	o.dir = dir
	if o.url, err = a.demoURL(dir); err != nil {
		return err
	}
	without, err := o.trial(ctx, "")
	if err != nil {
		return err
	}
	with, err := o.trial(ctx, o.url)
	if err != nil {
		return err
	}
	return a.report(o, without, with)
}

// demoURL returns the URL of the locks, which all processes must be able to reach.
func (a *app) demoURL(dir string) (string, error) {
	own := "sqlite:" + filepath.ToSlash(filepath.Join(dir, "locks.db"))
	if a.local && !a.url.set {
		return own, nil
	}
	u, err := a.givenURL()
	switch {
	case a.local:
		return "", errLocalURL()
	case err != nil:
		return "", err
	case u == "":
		return own, nil
	case strings.HasPrefix(u, "mem:"):
		return "", usage("demo: mem: stores locks in the memory of one process, and there are several; give another --url, or none")
	}
	return u, nil
}

// trial lets the buyers buy until all is sold, with a lock if url is not empty.
func (o *demoOptions) trial(ctx context.Context, url string) (*trial, error) {
	path := filepath.Join(o.dir, fmt.Sprintf("shop-%t.db", url != ""))
	s, err := openShop(ctx, path)
	if err != nil {
		return nil, err
	}
	defer s.close()
	if err := s.fill(ctx, o.stock); err != nil {
		return nil, err
	}
	d := &trial{stock: o.stock, processes: o.processes, workers: o.workers}
	began := time.Now()
	if d.visits, err = sendBuyers(ctx, o.processes, order{Shop: path, URL: url, Workers: o.workers, Think: o.think}); err != nil {
		return nil, err
	}
	d.took = time.Since(began)
	d.fences, err = s.fences(ctx)
	return d, err
}

// report prints the results, and returns an error if the lock did not work.
func (a *app) report(o *demoOptions, without, with *trial) error {
	if o.svg != "" {
		drawing, err := drawHolds(with)
		if err == nil {
			err = os.WriteFile(o.svg, drawing, 0o644)
		}
		if err != nil {
			return err
		}
	}
	if err := a.printTallies(without, with, o.json); err != nil {
		return err
	}
	switch {
	case with.sold() != o.stock:
		return exit(exitFailure, "demo: %d of %d items were sold under the lock", with.sold(), o.stock)
	case !with.fencesIncrease():
		return exit(exitFailure, "demo: the fences did not increase from sale to sale")
	}
	return nil
}
