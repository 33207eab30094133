package cli

import (
	"cmp"
	"context"
	"errors"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/distlock/distlock"
)

func (a *app) runCommand() *cobra.Command {
	o := &runOptions{meta: map[string]string{}, busyCode: exitBusy, onLoss: lossTerm, onAsk: askTerm}
	cmd := &cobra.Command{
		Use:   "run [flags] NAME... -- COMMAND [ARG...]",
		Short: "Hold locks while a command runs",
		Long:  runHelp,
		Example: `  distlock run backup -- ./backup.sh
  distlock run --wait 10s deploy:web -- kubectl apply -f web.yaml
  distlock run --no-wait --skip-ok --min-hold 1m nightly -- make report
  distlock run --permits 3 gpu -- ./train`,
		Args:                  func(cmd *cobra.Command, args []string) error { return o.parse(cmd, args) },
		RunE:                  func(*cobra.Command, []string) error { return a.runUnderLocks(o) },
		DisableFlagsInUseLine: true,
	}
	o.addFlags(cmd)
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error {
		return usage("%w (flags of the command go after --)", err)
	})
	return cmd
}

// runUnderLocks executes the command run.
func (a *app) runUnderLocks(o *runOptions) (err error) {
	if o.path, err = lookUp(o.command[0]); err != nil {
		return err
	}
	// Signals are caught until the process has ended: one in its last moment would replace the
	// exit code.
	signals := newSignals()
	ctx, endWait := signals.interrupt(context.Background())
	defer endWait()
	t, err := a.newAcquirer(ctx, o)
	if err != nil {
		return cmp.Or(caughtBy(ctx), err)
	}
	limit := closeTimeout
	defer func() { err = a.closeAfter(err, t.client, signals, limit) }()
	lease, err := t.acquire(ctx)
	endWait()
	switch caught := caughtBy(ctx); {
	case caught != nil && err == nil:
		return cmp.Or(caught, signals.giveBack(limit, func() error { return lease.Unlock(context.Background()) }))
	case err != nil:
		return o.outcomeOfWait(cmp.Or(caught, err))
	}
	limit = forever
	return a.runHolding(t, lease, signals)
}

// closeAfter closes the client after a run that ended with err, and returns the program's result.
func (a *app) closeAfter(err error, c *distlock.Client, signals *signals, limit time.Duration) error {
	if closed := signals.giveBack(limit, c.Close); closed != nil && limit == forever {
		a.warn(closed)
	}
	return cmp.Or(signals.aborted, err)
}

// verbosef prints a message if --verbose is set.
func (a *app) verbosef(o *runOptions, format string, args ...any) {
	if o.verbose {
		a.warnf(format, args...)
	}
}

// runHolding runs the command under the lease and releases the lease.
func (a *app) runHolding(t *acquirer, lease *distlock.MultiLease, signals *signals) error {
	o, granted := t.o, time.Now()
	j := &job{
		path: o.path, argv: o.command, env: jobEnv(os.Environ(), o.names, lease.Leases()),
		onLoss: o.onLoss, warning: o.warning(), lease: lease, asked: t.asked, signals: signals, warnf: a.warnf,
	}
	for _, l := range lease.Leases() {
		a.verbosef(o, "acquired %s at %s after %v, fence %d", quoted(l.Name()), t.client.Caps().Name, granted.Sub(t.began).Round(time.Millisecond), l.Fence())
	}
	code, err := j.run()
	unlocked := signals.giveBack(forever, func() error { return lease.Unlock(context.Background()) })
	if unlocked == nil {
		a.verbosef(o, "released %s after %v", quotedAll(o.names), time.Since(granted).Round(time.Millisecond))
	}
	switch {
	case err != nil:
		return err
	case j.losing || errors.Is(unlocked, distlock.ErrLost):
		return exit(exitLost, "the lock was lost while %s ran", o.command[0])
	case unlocked != nil:
		a.warn(unlocked)
	}
	if t.client.Caps().Session && signals.aborted == nil {
		// The hold ends with this process, which --min-hold must not cut short.
		signals.sleep(time.Until(granted.Add(o.minHold)))
	}
	if code != 0 {
		return &exitError{code: code}
	}
	return nil
}
