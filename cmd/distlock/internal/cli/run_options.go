package cli

import (
	"errors"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/driver"
)

const runHelp = `Run takes the lock, runs the command while it holds it, and gives it back. Several
locks are taken together, in an order that is the same everywhere.

The command has a process group of its own; signals are passed on to it, and its
exit code is returned. If the lock can't be kept, the command is stopped before
somebody else can get the lock. If distlock itself is killed, so is the command (on
Linux), but not what the command started in its turn; nor is what it leaves running
in the background protected by the lock.

When somebody asks for the lock (distlock unlock --ask), the command gets SIGTERM and
keeps the lock until it has ended, however long that takes; see --on-ask. If distlock
has some of several locks and waits for the others, it gives them back for a moment.

It sees in its environment, with one line per lock in the order they were named:
  DISTLOCK_NAME      the lock
  DISTLOCK_FENCE     the fencing token: greater than all before it
  DISTLOCK_OWNER     what identifies this hold
and
  DISTLOCK_DEADLINE  until when the grant was good at first (RFC 3339); renewals
                     move it on

Exit codes:
  the command's      128+n if signal n ended it
  1    another failure
  64   wrong usage, or a lock that this server can't do
  69   the server can't be reached
  75   busy: somebody else holds the lock, also after --wait (see --busy-code)
  76   the lock was lost while the command ran
  126  the command can't be run
  127  the command was not found`

// The policies of --on-loss.
const (
	lossTerm   = "term"
	lossKill   = "kill"
	lossIgnore = "ignore"
)

// The policies of --on-ask.
const (
	askTerm   = "term"
	askIgnore = "ignore"
)

const (
	maxPermits = math.MaxInt32
	maxGrace   = 5 * time.Second // the default of --grace is at most this

	// closeTimeout is how long the end of a run that never had the lock may be
	// delayed by a server that does not answer.
	closeTimeout = 1500 * time.Millisecond

	forever time.Duration = math.MaxInt64 // the time until what doesn't come
)

// runOptions is what run was asked for.
type runOptions struct {
	names   []string
	command []string
	path    string // of the command

	wait, ttl, minHold, grace time.Duration
	noWait, shared, fair      bool
	skipOK, quiet, verbose    bool
	permits, busyCode         int
	meta                      map[string]string
	onLoss, onAsk             string

	waitSet, graceSet bool
	margin            time.Duration
}

func (o *runOptions) addFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.Var(duration{d: &o.wait}, "wait", "give up after this time (default: wait as long as it takes)")
	f.BoolVar(&o.noWait, "no-wait", false, "give up at once if somebody else holds the lock")
	f.Var(duration{&o.ttl, true}, "ttl", "how long the lock outlives a distlock that died (default 30s)")
	f.BoolVar(&o.shared, "shared", false, "share the lock with others that say --shared")
	f.Var(number{&o.permits, 1, maxPermits}, "permits", "let so many hold the lock at once; all must say the same number")
	f.BoolVar(&o.fair, "fair", false, "first come, first served, if the server can")
	f.Var(duration{d: &o.minHold}, "min-hold", "keep the lock for at least this time, also if the command is done sooner")
	f.Var(pairs(o.meta), "meta", "what ls and show tell of this hold (may be repeated)")
	f.Var(number{&o.busyCode, 0, 255}, "busy-code", "exit code if somebody else holds the lock")
	f.BoolVar(&o.skipOK, "skip-ok", false, "exit with 0, and say nothing, if somebody else holds the lock")
	f.BoolVarP(&o.quiet, "quiet", "q", false, "do not say that it waits")
	f.BoolVarP(&o.verbose, "verbose", "v", false, "say where the locks are kept, when they were taken, and when they were given back")
	f.Var(choice{&o.onLoss, []string{lossTerm, lossKill, lossIgnore}}, "on-loss", "what the command gets if the lock can't be kept: SIGTERM and then SIGKILL, SIGKILL, or nothing")
	f.Var(choice{&o.onAsk, []string{askTerm, askIgnore}}, "on-ask", "what the command gets if somebody asks for the lock: SIGTERM, or nothing")
	f.Var(duration{&o.grace, true}, "grace", "how long before the lock ends SIGTERM is sent (default: a quarter of the TTL, 5s at most)")
}

// parse sorts the arguments and refuses what contradicts itself.
func (o *runOptions) parse(cmd *cobra.Command, args []string) error {
	dash := cmd.ArgsLenAtDash()
	switch {
	case dash < 0:
		return usage("run: no -- before the command; want: distlock run NAME -- COMMAND")
	case dash == 0:
		return usage("run: no lock is named; want: distlock run NAME -- COMMAND")
	case dash == len(args):
		return usage("run: no command after --; want: distlock run NAME -- COMMAND")
	}
	o.names, o.command = args[:dash], args[dash:]
	o.waitSet, o.graceSet = cmd.Flags().Changed("wait"), cmd.Flags().Changed("grace")
	return o.check()
}

func (o *runOptions) check() error {
	sorted := slices.Sorted(slices.Values(o.names))
	switch {
	case o.waitSet && o.noWait:
		return usage("run: --wait and --no-wait exclude each other; want one of them")
	case o.quiet && o.verbose:
		return usage("run: --quiet and --verbose exclude each other; want one of them")
	case o.shared && o.permits > 0:
		return usage("run: --shared and --permits exclude each other; want one of them")
	case o.permits > 0 && len(o.names) > 1:
		return usage("run: --permits is for one lock; got %d names", len(o.names))
	case o.graceSet && o.onLoss != lossTerm:
		return usage("run: --grace goes with --on-loss term, not with --on-loss %s", o.onLoss)
	case len(slices.Compact(slices.Clone(sorted))) < len(sorted):
		return usage("run: a lock is named twice; want each name once")
	case slices.Contains(o.names, ""):
		return usage("run: a lock's name is empty")
	}
	o.noWait = o.noWait || o.waitSet && o.wait == 0
	return nil
}

// checkBackend refuses a backend that is of no use to a command, and fills in what depends on it.
func (o *runOptions) checkBackend(caps driver.Caps) error {
	if err := o.applyDefaults(caps); err != nil {
		return err
	}
	if strings.HasPrefix(caps.Name, "mem:") {
		return usage("run: mem: is the memory of this process, so that it excludes no other; want a server, sqlite:/path/to/locks.db, or --local")
	}
	return nil
}

// applyDefaults fills in the times that depend on each other and on the server.
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
		return usage("run: --grace %v is too long for a TTL of %v; want at most half of it, %v, so that a renewal comes first", o.grace, o.ttl, o.ttl/2)
	}
	return nil
}

// warning is how long before the deadline the command is told to stop; 0: never.
func (o *runOptions) warning() time.Duration {
	switch o.onLoss {
	case lossTerm:
		return o.grace
	case lossKill:
		return min(o.ttl/50, 50*time.Millisecond)
	}
	return 0
}

// clientOptions makes a client whose holds tell of the command.
func (o *runOptions) clientOptions(watch *distlock.Observer) *distlock.Options {
	meta := map[string]string{"program": filepath.Base(o.command[0])}
	for k, v := range o.meta {
		meta[k] = v
	}
	return &distlock.Options{TTL: o.ttl, Margin: o.margin, HandoffMax: -1, Meta: meta, Observer: watch}
}

// lockers are the locks as they were asked for. asked is signalled when somebody asks for
// one of them.
func (o *runOptions) lockers(c *distlock.Client, asked chan<- struct{}) []distlock.Locker {
	var opts []distlock.LockOption
	if o.fair {
		opts = append(opts, distlock.Fair())
	}
	if o.minHold > 0 {
		opts = append(opts, distlock.MinHold(o.minHold))
	}
	if o.onAsk == askTerm && c.Caps().Revocable.Has(o.mode()) {
		opts = append(opts, distlock.Revocable(func(*distlock.Lease) { ring(asked) }))
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

// ring tells whoever looks at c, once.
func ring(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// mode is how the locks are held.
func (o *runOptions) mode() distlock.Mode {
	switch {
	case o.shared:
		return distlock.Read
	case o.permits > 0:
		return distlock.Counted
	}
	return distlock.Exclusive
}

// outcomeOfWait is how run ends without having had the lock.
func (o *runOptions) outcomeOfWait(err error) error {
	if !errors.Is(err, distlock.ErrHeld) {
		return err
	}
	if o.skipOK {
		return nil
	}
	return &exitError{o.busyCode, err}
}
