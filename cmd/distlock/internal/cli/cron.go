package cli

import (
	"time"

	"github.com/spf13/cobra"
)

// crontabs have no shorter schedule than defaultEvery.
const defaultEvery = time.Minute

func (a *app) cronCommand() *cobra.Command {
	o := newRunOptions()
	cmd := &cobra.Command{
		Use:   "cron [flags] NAME -- COMMAND [ARG...]",
		Short: "Run a scheduled command on one of the hosts that all start it",
		Long:  cronHelp,
		Example: `  distlock cron nightly -- /usr/local/bin/report
  distlock cron --every 5m cleanup -c 'cd /srv/app && ./cleanup >> cleanup.log'
  */5 * * * * distlock cron --every 5m cleanup -- ./cleanup.sh   # a line of a crontab`,
		Args: func(cmd *cobra.Command, args []string) error { return o.parse(cmd, args) },
		RunE: func(*cobra.Command, []string) error {
			a.everywhere, o.noWait, o.skipOK = true, true, true
			return a.runUnderLocks(o)
		},
		DisableFlagsInUseLine: true,
		ValidArgsFunction:     a.completeNames(1),
	}
	f := cmd.Flags()
	f.Var(duration(&o.every, false), "every", "time between two ticks of the schedule")
	f.StringVarP(&o.line, "command", "c", "", "run this line by the shell, in place of -- COMMAND")
	f.BoolVarP(&o.verbose, "verbose", "v", false, "report who runs this tick, and where the locks are stored")
	cmd.SetFlagErrorFunc(flagsBeforeDash)
	o.every = defaultEvery
	return cmd
}

const cronHelp = `Cron goes into the crontabs (or timers) of several hosts: each starts it at every tick, and
one of them runs the command, once. The others end at once and silently, with 0.

However short the command is, the lock is held for two thirds of the schedule after the
start of the command, and for 90 s at most. So a host whose clock is behind by less does not
run the tick again, also if the host that ran it has died since. --every says how far
apart the ticks are: with --every 2m or more the clocks may differ by more than a minute, and
without it, by 40 s. A schedule that is shorter than a minute needs it.

A command that takes longer than the schedule keeps the lock until it ends, and no host runs
the ticks that come meanwhile. After a host that dies, the next tick is run by another one, unless
it comes within the TTL, which is a quarter of the schedule, and 30 s at most.

Where locks end with their connection (ZooKeeper, advisory locks and GET_LOCK), distlock itself
stays until that time is over, and a host that dies lets go with its session: then a host whose
clock is behind runs the tick again.

Each job needs a name of its own: of two that share one, a tick runs one, and the other says so
only where both are of this host, and of different programs or lines for the shell.

A server is needed that all hosts reach, by --url, ` + urlVariable + ` or the file /etc/distlock.url,
since cron starts commands without the variables of a login. --local is for one host.

In all else cron is run: see distlock help run for signals, the environment and the loss of the lock.

Exit codes: the command's; 0 if another host runs this tick; 64 for wrong usage, 69 if the server
can't be reached, 76 if the lock was lost while the command ran, 126 and 127 if it can't be run.`
