package cli

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/distlock/distlock"
)

func (a *app) unlockCommand() *cobra.Command {
	var ask, force, foreign bool
	cmd := &cobra.Command{
		Use:   "unlock --ask|--force NAME",
		Short: "Ask for a lock, or break one whose holder is dead or stopped",
		Long: `Unlock --ask asks all who hold a lock to give it back, if the server can pass that on:
ZooKeeper can, the others can not.
It does not wait until they do, which is up to them: distlock run stops its command,
programs do what they were written to do. Exit code 1 also says that a holder does
not listen.

Unlock --force takes a lock away from all who hold it. They learn of it at their next
renewal only, and until then they go on: be sure that they are dead or stopped.

On a Redis that other programs use, a string with a TTL may be the lock of another library
or other data. --force leaves it alone unless you give --foreign too, which deletes it.

Both are about those that hold now and about nobody who gets the lock later.
A lock of a dead process ends by itself with its TTL; see "left" in distlock show.
Exit code 1: nobody holds the lock.`,
		Example: "  distlock --url zk://localhost:2181 unlock --ask backup\n  distlock show backup\n  distlock unlock --force backup",
		Args: func(cmd *cobra.Command, args []string) error {
			if err := exactly(1, "the name of one lock")(cmd, args); err != nil {
				return err
			}
			switch {
			case ask && force:
				return usage("unlock: --ask and --force exclude each other; want one of them")
			case foreign && !force:
				return usage("unlock: --foreign goes with --force")
			case !ask && !force:
				return usage("unlock: say distlock unlock --ask NAME to ask the holder for it; one that is taken away goes on until its next renewal, beside whoever gets the lock next: if it is dead or stopped for sure, say distlock unlock --force NAME")
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error {
			if ask {
				return a.unlock(args[0], "asked", (*distlock.Client).Revoke)
			}
			return a.unlock(args[0], "broke", func(c *distlock.Client, ctx context.Context, info distlock.Info) error {
				return breakLock(c, ctx, info, foreign)
			})
		},
	}
	cmd.Flags().BoolVar(&ask, "ask", false, "ask the holder to give it back")
	cmd.Flags().BoolVar(&force, "force", false, "yes, break it")
	cmd.Flags().BoolVar(&foreign, "foreign", false, "with --force: also if another program wrote it")
	return cmd
}

// breakLock breaks a lock. One in a form that is not known has to be meant.
func breakLock(c *distlock.Client, ctx context.Context, info distlock.Info, foreign bool) error {
	for i, h := range info.Holders {
		if h.Foreign && !foreign {
			return usage("unlock: %s has a value that distlock did not write: another library's lock, or other data, which --force would delete; if it is a lock whose holder is dead for sure, say distlock unlock --force --foreign NAME",
				quoted(info.Name))
		}
		info.Holders[i].Foreign = false
	}
	return c.ForceUnlock(ctx, info)
}

// unlock does something about all who hold a lock.
func (a *app) unlock(name, did string, do func(*distlock.Client, context.Context, distlock.Info) error) error {
	ctx, cancel := interruptible()
	defer cancel()
	c, err := a.client(ctx)
	if err != nil {
		return err
	}
	defer a.closeClient(c)
	info, err := c.Inspect(ctx, name)
	if err != nil {
		return err
	}
	if len(info.Holders) > 0 {
		err = do(c, ctx, info)
	}
	switch {
	case len(info.Holders) == 0 || errors.Is(err, distlock.ErrLost):
		return exit(exitFailure, "unlock: nobody holds %s", quoted(name))
	case errors.Is(err, distlock.ErrUnsupported) && c.Caps().Revocable.Has(info.Mode):
		return exit(exitFailure, "unlock: a holder of %s does not listen to those who ask for it", quoted(name))
	case err != nil:
		return err
	}
	for _, h := range info.Holders {
		a.printf("%s %s: %s hold, fence %s, %s\n", did, plain(name), h.Mode, fence(h), plain(describe([]distlock.Holder{h})))
	}
	return nil
}
