package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/cmd/distlock/internal/job"
	"github.com/distlock/distlock/driver"
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
  distlock run --no-wait --skip-ok --min-hold 1m nightly -- make report
  distlock run --permits 3 gpu -- ./train`,
		Args:                  func(cmd *cobra.Command, args []string) error { return o.parse(cmd, args) },
		RunE:                  func(*cobra.Command, []string) error { return a.runUnderLocks(o) },
		DisableFlagsInUseLine: true,
		ValidArgsFunction:     a.completeNames(-1),
	}
	o.addWaitFlags(cmd)
	o.addFlags(cmd)
	f := cmd.Flags()
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
			return o.outcomeOfWait(err)
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
		a.verbosef(o, "released %s after %v", quotedAll(o.names), time.Since(granted).Round(time.Millisecond))
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

In the crontabs of several hosts, --no-wait --skip-ok runs a job on one of them only if
--min-hold keeps the lock for longer than their clocks differ: a job that ends sooner would
run on each.

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
  64   wrong usage, or a kind of lock that this server does not support
  69   the server can't be reached
  75   busy: another client holds the lock, even after --wait (see --busy-code)
  76   the lock was lost while the command ran
  126  the command can't be run
  127  the command was not found`

// The policies of --on-ask.
const (
	askTerm   = "term"
	askIgnore = "ignore"
)

const (
	maxPermits = math.MaxInt32
	maxGrace   = 5 * time.Second // the default of --grace is at most this

	// closeTimeout bounds how long a server that does not answer delays the end of a run that
	// never had the lock.
	closeTimeout = 1500 * time.Millisecond

	forever time.Duration = math.MaxInt64 // the time until an event that does not come
)

// runOptions are the arguments and flags of run.
type runOptions struct {
	verb    string // run or elect
	again   bool   // elect: also after the command has ended by itself
	names   []string
	command []string
	path    string // of the command

	wait, ttl, minHold, grace time.Duration
	noWait, shared, fair      bool
	skipOK, quiet, verbose    bool
	permits, busyCode         int
	meta                      map[string]string
	onLoss                    job.Policy
	onAsk                     string

	waitSet, graceSet bool
	margin            time.Duration
}

func newRunOptions() *runOptions {
	return &runOptions{meta: map[string]string{}, busyCode: exitBusy, onLoss: job.Term, onAsk: askTerm}
}

// addWaitFlags adds the flags that run and lock have.
func (o *runOptions) addWaitFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.Var(duration(&o.wait, true), "wait", "give up after this time (default: wait as long as it takes, but not for a server that can't be reached)")
	f.BoolVar(&o.noWait, "no-wait", false, "give up at once if another client holds the lock")
	f.BoolVar(&o.shared, "shared", false, "share the lock with others that use --shared")
	f.Var(number(&o.permits, 1, maxPermits), "permits", "number of clients that may hold the lock at once; all must use the same number")
	f.BoolVar(&o.fair, "fair", false, "first come, first served, if the server supports it")
	f.Var(number(&o.busyCode, 0, 255), "busy-code", "exit code if another client holds the lock")
}

// addFlags adds the flags that run and elect have.
func (o *runOptions) addFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.Var(duration(&o.ttl, false), "ttl", "how long the lock outlives a dead distlock (default 30s)")
	f.Var(pairs(o.meta), "meta", "metadata for ls and show (may be repeated)")
	f.BoolVarP(&o.quiet, "quiet", "q", false, "do not report waiting")
	f.BoolVarP(&o.verbose, "verbose", "v", false, "report where the locks are stored, when they were acquired and when they were released")
	f.Var(choice(&o.onLoss, string(job.Term), string(job.Kill), string(job.Ignore)), "on-loss", "signal to the command if the lock can't be renewed: SIGTERM and then SIGKILL, SIGKILL, or none")
	f.Var(choice(&o.onAsk, askTerm, askIgnore), "on-ask", "signal to the command if another user asks for the lock: SIGTERM, or none")
	f.Var(duration(&o.grace, false), "grace", "how long before the lock expires the command gets SIGTERM (default: a quarter of the TTL, at most 5s)")
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error {
		return usage("%w (flags of the command go after --)", err)
	})
}

// parse splits the arguments into names and command, and rejects contradictions.
func (o *runOptions) parse(cmd *cobra.Command, args []string) error {
	o.verb = cmd.Name()
	want := fmt.Sprintf("want: distlock %s NAME -- COMMAND", o.verb)
	dash := cmd.ArgsLenAtDash()
	switch {
	case dash < 0:
		return usage("%s: no -- before the command; %s", o.verb, want)
	case dash == 0:
		return usage("%s: no name of a lock; %s", o.verb, want)
	case dash == len(args):
		return usage("%s: no command after --; %s", o.verb, want)
	case dash > 1 && o.verb == "elect":
		return usage("elect: got %d names; %s", dash, want)
	}
	o.names, o.command = args[:dash], args[dash:]
	o.waitSet, o.graceSet = cmd.Flags().Changed("wait"), cmd.Flags().Changed("grace")
	return o.check()
}

func (o *runOptions) check() error {
	sorted := slices.Sorted(slices.Values(o.names))
	switch {
	case o.waitSet && o.noWait:
		return usage("%s: --wait and --no-wait exclude each other; want one of them", o.verb)
	case o.quiet && o.verbose:
		return usage("%s: --quiet and --verbose exclude each other; want one of them", o.verb)
	case o.shared && o.permits > 0:
		return usage("%s: --shared and --permits exclude each other; want one of them", o.verb)
	case o.permits > 0 && len(o.names) > 1:
		return usage("run: --permits is for one lock; got %d names", len(o.names))
	case o.graceSet && o.onLoss != job.Term:
		return usage("%s: --grace goes with --on-loss term, not with --on-loss %s", o.verb, o.onLoss)
	case len(slices.Compact(slices.Clone(sorted))) < len(sorted):
		return usage("run: a lock is named twice; want each name once")
	case slices.Contains(o.names, ""):
		return usage("%s: a lock's name is empty", o.verb)
	}
	o.noWait = o.noWait || o.waitSet && o.wait == 0
	return nil
}

// checkBackend rejects a backend that is no use to a command, and sets the defaults that depend on it. A server
// may have its locks in memory.
func (o *runOptions) checkBackend(url string, caps driver.Caps) error {
	if err := o.applyDefaults(caps); err != nil {
		return err
	}
	if strings.HasPrefix(url, "mem:") {
		return usage("%s: mem: stores locks in the memory of this process, where no other process sees them; want a server, sqlite:/path/to/locks.db, or --local", o.verb)
	}
	return nil
}

// applyDefaults sets the times that depend on each other and on the server.
func (o *runOptions) applyDefaults(caps driver.Caps) error {
	if o.ttl == 0 {
		o.ttl = max(distlock.DefaultTTL, caps.MinTTL)
		if caps.MaxTTL > 0 {
			o.ttl = min(o.ttl, caps.MaxTTL)
		}
	}
	o.margin = min(o.ttl/10, time.Second)
	if !o.graceSet {
		o.grace = min(o.ttl/4, maxGrace)
	}
	if o.grace > o.ttl/2 {
		return usage("%s: --grace %v is too long for a TTL of %v; want at most half of it, %v, so that renewals come first", o.verb, o.grace, o.ttl, o.ttl/2)
	}
	return nil
}

// notice returns how long before the deadline the command is stopped; 0: never.
func (o *runOptions) notice() time.Duration {
	switch o.onLoss {
	case job.Term:
		return o.grace
	case job.Kill:
		return min(o.ttl/50, 50*time.Millisecond)
	}
	return 0
}

// clientOptions returns options for a client whose metadata describes the command.
func (o *runOptions) clientOptions(watch *distlock.Observer) *distlock.Options {
	meta := map[string]string{"program": filepath.Base(o.command[0])}
	for k, v := range o.meta {
		meta[k] = v
	}
	return &distlock.Options{TTL: o.ttl, Margin: o.margin, HandoffMax: -1, Meta: meta, Observer: watch}
}

// lockers returns the locks. asked is notified when another user revokes one of them.
func (o *runOptions) lockers(c *distlock.Client, asked wait.Signal) []distlock.Locker {
	var opts []distlock.LockOption
	if o.fair {
		opts = append(opts, distlock.Fair())
	}
	if o.minHold > 0 {
		opts = append(opts, distlock.MinHold(o.minHold))
	}
	if o.onAsk == askTerm && c.Caps().Revocable.Has(o.mode()) {
		opts = append(opts, distlock.Revocable(func(*distlock.Lease) { asked.Notify() }))
	}
	var all []distlock.Locker
	for _, name := range o.names {
		switch {
		case o.shared:
			all = append(all, c.RWMutex(name, opts...).Reader())
		case o.permits > 0:
			all = append(all, c.Semaphore(name, o.permits, opts...))
		default:
			all = append(all, c.Mutex(name, opts...))
		}
	}
	return all
}

// mode returns the mode in which the locks are held.
func (o *runOptions) mode() distlock.Mode {
	switch {
	case o.shared:
		return distlock.Read
	case o.permits > 0:
		return distlock.Counted
	}
	return distlock.Exclusive
}

// outcomeOfWait returns the result of a run that did not get the lock.
func (o *runOptions) outcomeOfWait(err error) error {
	if !errors.Is(err, distlock.ErrHeld) {
		return err
	}
	if o.skipOK {
		return nil
	}
	return &exitError{code: o.busyCode, err: err}
}

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
