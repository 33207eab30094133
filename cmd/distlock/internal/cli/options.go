package cli

import (
	"fmt"
	"hash/crc32"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/cmd/distlock/internal/job"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/tick"
	"github.com/distlock/distlock/internal/wait"
)

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
	verb    string // run, cron or elect
	again   bool   // elect: also after the command has ended by itself
	names   []string
	command []string
	line    string        // of a shell, in place of a command
	path    string        // of the command
	every   time.Duration // cron: between two ticks

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
	cmd.SetFlagErrorFunc(flagsBeforeDash)
}

func flagsBeforeDash(cmd *cobra.Command, err error) error {
	return badFlag(cmd, err, " (flags of the command go after --)")
}

// parse splits the arguments into names and command, and rejects contradictions.
func (o *runOptions) parse(cmd *cobra.Command, args []string) error {
	o.verb = cmd.Name()
	want := fmt.Sprintf("want: distlock %s NAME -- COMMAND", o.verb)
	dash := cmd.ArgsLenAtDash()
	if cmd.Flags().Changed("command") {
		if dash >= 0 || o.line == "" {
			return usage("%s: -c takes a line for the shell, and no -- COMMAND goes with it; want: distlock %s NAME -c 'LINE'", o.verb, o.verb)
		}
		dash, args = len(args), append(args, "sh", "-c", o.line)
	}
	switch {
	case dash < 0:
		return usage("%s: no -- before the command; %s", o.verb, want)
	case dash == 0:
		return usage("%s: no name of a lock; %s", o.verb, want)
	case dash == len(args):
		return usage("%s: no command after --; %s", o.verb, want)
	case o.verb == "cron" && schedule(args[0]):
		return usage("cron: %s is a schedule, and stands in the crontab, before distlock; want: distlock cron --every 5m NAME -- COMMAND", quoted(args[0]))
	case o.verb == "cron" && o.every < time.Second:
		return usage("cron: --every %v is too short; want 1s or more", o.every)
	case dash > 1 && o.verb != "run":
		return usage("%s: got %d names; %s", o.verb, dash, want)
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
		return usage("run: --permits is for one lock; got %d names; want one", len(o.names))
	case o.graceSet && o.onLoss != job.Term:
		return usage("%s: --grace goes with --on-loss term, not with --on-loss %s; want one of them", o.verb, o.onLoss)
	case len(slices.Compact(slices.Clone(sorted))) < len(sorted):
		return usage("run: a lock is named twice; want each name once")
	case slices.Contains(o.names, ""):
		return usage("%s: a lock's name is empty; want one such as backup", o.verb)
	}
	o.noWait = o.noWait || o.waitSet && o.wait == 0
	return nil
}

// schedule reports whether a name is a schedule, as crontabs have it.
func schedule(name string) bool {
	return len(strings.Fields(name)) >= 5 || strings.HasPrefix(name, "@")
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
	if o.verb == "cron" {
		o.minHold, o.ttl = tick.Terms(o.every, o.ttl, caps)
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

// program is the name of the command in metadata.
func (o *runOptions) program() string { return filepath.Base(o.command[0]) }

// clientOptions returns options for a client whose metadata describes the command.
func (o *runOptions) clientOptions(watch *distlock.Observer) *distlock.Options {
	meta := map[string]string{"program": o.program()}
	if o.verb == "cron" && len(o.command) > 2 && o.command[1] == "-c" { // all jobs have a shell as their program then
		meta["line"] = fmt.Sprintf("%04x", uint16(crc32.ChecksumIEEE([]byte(o.command[2])))) // which is too short to tell what is in it
	}
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
