package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/cmd/distlock/internal/job"
	"github.com/distlock/distlock/internal/wait"
)

func (a *app) runCommand() *cobra.Command {
	o := newRunOptions()
	cmd := &cobra.Command{
		Use:   "run [flags] NAME... -- COMMAND [ARG...]",
		Short: "Hold locks while a command runs",
		Long:  runHelp,
		Example: `  distlock run backup -- ./backup.sh
  distlock run --wait 10s deploy:web -- kubectl apply -f web.yaml
  distlock run deploy -c 'git pull && make install'
  distlock run --permits 3 gpu -- ./train`,
		Args:                  func(cmd *cobra.Command, args []string) error { return o.parse(cmd, args) },
		RunE:                  func(*cobra.Command, []string) error { return a.runUnderLocks(o) },
		DisableFlagsInUseLine: true,
		ValidArgsFunction:     a.completeNames(-1),
	}
	o.addWaitFlags(cmd)
	o.addFlags(cmd)
	f := cmd.Flags()
	f.StringVarP(&o.line, "command", "c", "", "run this line by the shell, in place of -- COMMAND")
	f.Var(duration(&o.minHold, true), "min-hold", "hold the lock for at least this time, even if the command ends sooner")
	f.BoolVar(&o.skipOK, "skip-ok", false, "exit silently with 0 if another client holds the lock")
	return cmd
}

// runUnderLocks executes the commands run and elect.
func (a *app) runUnderLocks(o *runOptions) (err error) {
	if o.path, err = lookUp(o.command[0]); err != nil {
		return err
	}
	// Signals are caught until the process has ended: one in its last moment would replace the
	// exit code.
	signals := newSignals()
	ctx, endWait := signals.interrupt(context.Background())
	t, err := a.newAcquirer(ctx, o)
	endWait()
	if err != nil {
		return cmp.Or(caughtBy(ctx), err)
	}
	limit := closeTimeout
	defer func() { err = a.closeAfter(err, t.client, signals, limit) }()
	if caught := caughtBy(ctx); caught != nil {
		return caught
	}
	for pause := time.Duration(0); ; {
		lease, err := t.acquireUnlessCaught(signals, pause)
		if err != nil {
			return a.outcomeOfWait(o, err)
		}
		limit = forever
		end, err := a.runHolding(t, lease, signals)
		if end == over {
			return err
		}
		if signals.late != nil {
			return signals.late
		}
		limit = closeTimeout // as for a run that never had the lock: it was released
		pause = a.nextCampaign(t, end, err)
	}
}

// acquireUnlessCaught acquires the locks after a pause. If a signal comes before it has them, the
// error is its exit code.
func (a *acquirer) acquireUnlessCaught(signals *signals, pause time.Duration) (*distlock.MultiLease, error) {
	ctx, endWait := signals.interrupt(context.Background())
	defer endWait()
	var lease *distlock.MultiLease
	err := wait.Sleep(ctx, pause)
	if err == nil {
		lease, err = a.acquire(ctx)
	}
	endWait()
	caught := caughtBy(ctx)
	if caught != nil && err == nil {
		return nil, cmp.Or(caught, signals.giveBack(closeTimeout, func() error { return lease.Unlock(context.Background()) }))
	}
	return lease, cmp.Or(caught, err)
}

// closeAfter closes the client after a run that ended with err, and returns the program's result.
func (a *app) closeAfter(err error, c *distlock.Client, signals *signals, limit time.Duration) error {
	if errors.Is(err, distlock.ErrUnavailable) {
		limit = min(limit, answerTimeout/2) // what it may have granted is released by a request, and no answer is likely
	}
	if closed := signals.giveBack(limit, c.Close); closed != nil && limit == forever {
		a.warn(closed)
	}
	return cmp.Or(signals.aborted, err)
}

// runHolding runs the command under the lease and releases the lease.
func (a *app) runHolding(t *acquirer, lease *distlock.MultiLease, signals *signals) (outcome, error) {
	o, granted := t.o, time.Now()
	j := &job.Command{
		Path: o.path, Args: o.command, Env: jobEnv(os.Environ(), o.names, lease.Leases()), Lock: locks{lease},
		OnLoss: o.onLoss, Notice: o.notice(), Asked: t.asked, Signals: signals.ch, Catch: signals.listen, Warnf: t.warnf,
	}
	for _, l := range lease.Leases() {
		a.verbosef(o, "acquired %s at %s after %v, fence %d", quoted(l.Name()), t.client.Caps().Name, granted.Sub(t.began).Round(time.Millisecond), l.Fence())
	}
	if lease.Err() != nil { // the message may have waited for a terminal that takes no output
		return o.outcomeOf(job.Result{}, lost), exit(exitLost, "the lock was lost before %s was started", o.command[0])
	}
	r, err := j.Run()
	if err != nil {
		err = cantRun(o.command[0], err)
	}
	unlocked := signals.giveBack(forever, func() error { return lease.Unlock(context.Background()) })
	t.flush()
	if unlocked == nil && signals.aborted == nil {
		a.verbosef(o, "%s", released(o, time.Since(granted)))
	}
	switch {
	case err != nil:
		return over, err
	case r.Lost || errors.Is(unlocked, distlock.ErrLost):
		return o.outcomeOf(r, lost), exit(exitLost, "the lock was lost while %s ran", o.command[0])
	case unlocked != nil:
		a.warn(unlocked)
	}
	end := exited
	if r.GaveWay {
		end = gaveWay
	}
	if r.Code != 0 {
		err = &exitError{code: r.Code, interrupted: r.Interrupted}
	}
	return o.outcomeOf(r, end), err
}

// released describes the end of a hold, which --min-hold may keep from others.
func released(o *runOptions, held time.Duration) string {
	if rest := o.minHold - held; rest > 0 {
		return fmt.Sprintf("%s ended after %v; %s stays locked for another %v", o.command[0], held.Round(time.Millisecond), quotedAll(o.names), short(rest))
	}
	return fmt.Sprintf("released %s after %v", quotedAll(o.names), held.Round(time.Millisecond))
}

// locks are the locks of a lease, as package job sees them.
type locks struct{ *distlock.MultiLease }

// Deadline returns the earliest deadline of the leases.
func (l locks) Deadline() time.Time { return firstDeadline(l.Leases()) }

// Lost returns why the first of them was lost.
func (l locks) Lost() string {
	if err := l.Err(); err != nil {
		return reason(err)
	}
	return ""
}

const runHelp = `Run acquires the lock, runs the command, and releases the lock. It acquires several
locks together, in an order that is the same everywhere.

Run forwards signals to the command and returns its exit code. At a terminal the command is
in the process group of run, so that its keys (Ctrl-C, Ctrl-Z) reach both; elsewhere it has
a group of its own, which gets each signal. If the lock can't be renewed, run stops the
command before another client can get the lock: by SIGTERM, and when the lock is lost it
kills the command and all that it has started (beyond Linux: its group, at a terminal the
command alone). A distlock that is stopped (SIGSTOP) or frozen can't do that: once its TTL is
over the command works on beside the next holder, and only DISTLOCK_FENCE protects the data.
If distlock itself is killed, so is the command (on Linux), but not the command's own
children. The lock does not protect processes that the command leaves
running in the background. After a signal or a request for the lock, though, run waits
for all processes of the group; another signal ends that wait.

A server that accepts connections and does not answer in time can't be reached. It has until
--wait is over, at least 1s, or 2s in all with --no-wait. Run ends half a second later at most.

For the crontabs of several hosts there is distlock cron, which runs a job on one of them: with
--no-wait --skip-ok alone, a job that ends within the difference of their clocks runs on each.

At a terminal, a Ctrl-C that ends the command ends the script that called run, too. A
job that Ctrl-Z stops is not renewed: it is killed if it is continued after its TTL. A
command that Ctrl-Z does not stop works on without renewals: continue it at once (fg).

If another user asks for the lock (distlock unlock --ask), the command gets SIGTERM. Run
holds the lock until the command has ended, however long that takes; see --on-ask. While
run holds some of several locks and waits for the others, it releases them for a moment
instead.

The command's environment has, with one line per lock in the order of the arguments:
  DISTLOCK_NAME      the name of the lock
  DISTLOCK_FENCE     the fencing token, greater than all before it
  DISTLOCK_OWNER     the identifier of this hold
and
  DISTLOCK_DEADLINE  when the lock would have expired without renewals (RFC 3339)

Exit codes:
  the command's      128+n if signal n ended it
  1    another failure
  64   wrong usage, a right that is missing, or a kind of lock that this server does not support
  69   the server can't be reached
  75   busy: another client holds the lock, even after --wait (see --busy-code)
  76   the lock was lost while the command ran
  126  the command can't be run
  127  the command was not found`

// lookUp finds a command as a shell would.
func lookUp(command string) (string, error) {
	path, err := exec.LookPath(command)
	switch {
	case err == nil, errors.Is(err, exec.ErrDot):
		return path, nil
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, fs.ErrNotExist):
		return "", exit(exitNotFound, "%s: command not found", command)
	}
	return "", cantRun(command, err)
}

func cantRun(command string, err error) error {
	if e := (*exec.Error)(nil); errors.As(err, &e) {
		err = e.Err
	}
	if e := (*fs.PathError)(nil); errors.As(err, &e) {
		err = e.Err
	}
	return exit(exitCantRun, "%s: can't be run: %w", command, err)
}

// jobEnv returns env with the variables that describe the locks: a line for each lock, in the order of
// names.
func jobEnv(env, names []string, leases []*distlock.Lease) []string {
	byName := map[string]*distlock.Lease{}
	for _, l := range leases {
		byName[l.Name()] = l
	}
	var fences, owners []string
	for _, name := range names {
		fences = append(fences, strconv.FormatUint(byName[name].Fence(), 10))
		owners = append(owners, byName[name].Owner())
	}
	return setEnv(env, map[string]string{
		"DISTLOCK_NAME":     strings.Join(names, "\n"),
		"DISTLOCK_FENCE":    strings.Join(fences, "\n"),
		"DISTLOCK_OWNER":    strings.Join(owners, "\n"),
		"DISTLOCK_DEADLINE": firstDeadline(leases).UTC().Format(stamp),
	})
}

// setEnv returns env with vars in place of variables of the same name.
func setEnv(env []string, vars map[string]string) []string {
	env = slices.DeleteFunc(slices.Clone(env), func(pair string) bool {
		key, _, _ := strings.Cut(pair, "=")
		_, ours := vars[key]
		return ours
	})
	for key, value := range vars {
		env = append(env, fmt.Sprintf("%s=%s", key, value))
	}
	return env
}

// firstDeadline returns the earliest deadline of the leases.
func firstDeadline(leases []*distlock.Lease) time.Time {
	first := leases[0].Deadline()
	for _, l := range leases[1:] {
		if d := l.Deadline(); d.Before(first) {
			first = d
		}
	}
	return first
}
