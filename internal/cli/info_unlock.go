package cli

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/distlock/distlock"
)

func (a *app) unlockCommand() *cobra.Command {
	force := false
	cmd := &cobra.Command{
		Use:   "unlock --force NAME",
		Short: "Break a lock whose holder is dead or stopped",
		Long: `Unlock takes a lock away from all who hold it. They learn of it at their next
renewal only, and until then they go on: be sure that they are dead or stopped. It
breaks what it found and nothing that was granted since.

A lock of a dead process ends by itself with its TTL; see "left" in distlock show.
Exit code 1: nobody holds the lock.`,
		Example: "  distlock show backup\n  distlock unlock --force backup",
		Args: func(cmd *cobra.Command, args []string) error {
			if err := exactly(1, "the name of one lock")(cmd, args); err != nil {
				return err
			}
			if !force {
				return usage("unlock: the holder goes on until its next renewal, beside whoever gets the lock next; if it is dead or stopped for sure, say: distlock unlock --force NAME")
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error { return a.unlock(args[0]) },
	}
	cmd.Flags().BoolVar(&force, "force", false, "yes, break it")
	return cmd
}

func (a *app) unlock(name string) error {
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
		err = c.Break(ctx, info)
	}
	switch {
	case len(info.Holders) == 0 || errors.Is(err, distlock.ErrLost):
		return exit(exitFailure, "unlock: nobody holds %s", quoted(name))
	case err != nil:
		return err
	}
	for _, h := range info.Holders {
		a.printf("broke %s: %s hold, fence %s, %s\n", plain(name), h.Mode, fence(h), plain(describe([]distlock.Holder{h})))
	}
	return nil
}
