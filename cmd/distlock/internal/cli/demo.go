package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
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

// demoOptions are the flags of the demo.
type demoOptions struct {
	stock, processes int
	think            time.Duration
	json             bool
}

func (a *app) demoCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "See what a lock is for",
		Args:  exactly(0, "oversell or serve"),
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.oversellCommand(), a.demoServeCommand(), &cobra.Command{
		Use:    "buyer",
		Short:  "Be a buyer of the demo oversell",
		Hidden: true,
		Args:   exactly(0, "none"),
		RunE:   func(*cobra.Command, []string) error { return a.buyer(os.Stdin) },
	})
	return cmd
}

func (a *app) oversellCommand() *cobra.Command {
	o := &demoOptions{stock: 5, processes: 4, think: 100 * time.Millisecond}
	cmd := &cobra.Command{
		Use:     "oversell",
		Short:   "A shop sells more than it has, until it takes a lock",
		Long:    oversellHelp,
		Example: "  distlock demo oversell --url redis://localhost:6379",
		Args:    exactly(0, "none"),
		RunE:    func(*cobra.Command, []string) error { return a.oversell(o) },
	}
	f := cmd.Flags()
	f.Var(number(&o.stock, 1, 1000), "stock", "items in the shop")
	f.Var(number(&o.processes, 1, 64), "processes", "buyers, each a process")
	f.Var(duration(&o.think, true), "think", "how long a buyer thinks between reading the stock and writing it")
	f.BoolVar(&o.json, "json", false, "print only the tallies, as JSON")
	return cmd
}

func (a *app) oversell(o *demoOptions) error {
	dir, err := os.MkdirTemp("", "distlock-demo-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := a.chooseDemoURL(dir); err != nil {
		return err
	}
	tell := a.printf
	if o.json {
		tell = func(string, ...any) {}
	}
	// The client only finds out, once and before all buyers, whether the server can be reached.
	return a.withClient(func(ctx context.Context, _ *distlock.Client) error {
		tell("%d items, %d buyers. Without a lock:\n", o.stock, o.processes)
		without, err := o.trial(ctx, "", tell)
		if err != nil {
			return err
		}
		tell("%d sold: %d too many.\n\nWith a lock:\n", without.Sold, without.Oversold)
		with, err := o.trial(ctx, a.url.s, tell)
		if err == nil && o.json {
			err = json.NewEncoder(a.out).Encode(map[string]tally{"without_lock": without, "with_lock": with})
		}
		err = cmp.Or(err, with.judge())
		if err == nil {
			tell("%d sold, and each fence is greater than the one before.\n%s", with.Sold, oversellNext)
		}
		return err
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
