package cli

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/internal/oversell"
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
		if err := (oversell.Demo{Printf: a.printf, Buyer: []string{"demo", "buyer"}}).Run(ctx, a.url.s); err != nil {
			return demoError(err)
		}
		a.printf("%s", oversellNext)
		return nil
	})
}

// demoError gives the demo's error the exit code of its buyer, or of a lock that does not work.
func demoError(err error) error {
	var buyer *oversell.BuyerError
	switch {
	case errors.As(err, &buyer):
		return exit(buyer.Code, "demo: %s", reason(errors.New(buyer.Text)))
	case errors.Is(err, oversell.ErrLock):
		return exit(exitFailure, "demo: %v", err)
	}
	return err
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

// buyer is the main function of a buyer.
func (a *app) buyer(in io.Reader) error {
	ctx, cancel := interruptible()
	defer cancel()
	err := oversell.Buy(ctx, in, a.out, func(ctx context.Context, url string) (*distlock.Client, error) {
		a.url = text{s: url, set: true}
		return a.client(ctx)
	})
	if errors.Is(err, oversell.ErrNoOrder) {
		return usage("demo buyer: %v; want: distlock demo oversell", err)
	}
	return unlessCaught(ctx, err)
}
