package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/distlock/distlock"
)

func (a *app) electCommand() *cobra.Command {
	o := newRunOptions()
	cmd := &cobra.Command{
		Use:   "elect [flags] NAME -- COMMAND [ARG...]",
		Short: "Run a command while this process is the elected leader",
		Long:  electHelp,
		Example: `  distlock elect scheduler -- ./scheduler
  distlock elect --again --ttl 10s --meta address=10.0.0.7:8080 web -- ./serve
  distlock leader --watch web
  distlock --url zk://localhost:2181 unlock --ask web   # the leader steps down`,
		Args:                  func(cmd *cobra.Command, args []string) error { return o.parse(cmd, args) },
		RunE:                  func(*cobra.Command, []string) error { return a.runUnderLocks(o) },
		DisableFlagsInUseLine: true,
		ValidArgsFunction:     a.completeNames(1),
	}
	cmd.Flags().BoolVar(&o.again, "again", false, "campaign again after the command has ended by itself, whatever its exit code")
	o.addFlags(cmd)
	return cmd
}

const electHelp = `Elect waits until no other process leads, and runs the command as the leader. Start it
on several hosts: the command runs on one of them, and when that one is gone, on another.
The lock, the environment of the command and the way it is stopped are those of distlock
run: see its help. DISTLOCK_FENCE is the number of the term.

Elect outlives its terms:
  - If the term is lost, the command is stopped before another one can run, and elect
    campaigns again.
  - If another user asks the leader to step down (distlock unlock --ask), the command
    gets SIGTERM. Once it has ended, the next candidate leads. Elect campaigns again two
    seconds later, so that others get their turn.
  - If the command ends by itself, elect releases the lock, so that another candidate
    leads at once, and ends with the command's exit code: a supervisor sees it as if it
    had started the command. With --again, elect campaigns again instead, after two
    seconds.
  - SIGTERM, SIGINT and SIGQUIT end elect. A leader forwards them to its command and ends
    with it; a candidate ends at once, also upon SIGHUP. A command that was ended by
    SIGINT, SIGQUIT or SIGHUP, as from a terminal, ends elect, too.

Exit codes:
  the command's      128+n if signal n ended it
  1    another failure
  64   wrong usage, or a right that is missing
  69   the server can't be reached at the start; later on, elect waits for it
  76   the term was lost while the command was ending because of a signal to elect
  126  the command can't be run
  127  the command was not found
  128+n              signal n ended a candidate`

func (a *app) leaderCommand() *cobra.Command {
	var watch, asJSON bool
	cmd := &cobra.Command{
		Use:   "leader NAME",
		Short: "Show which process leads an election",
		Long: `Leader prints the program, pid and host of the process that leads the election NAME, the
fence of its term, since when it leads, and the metadata that it publishes. Values that
the server does not report are omitted. If there is no leader, it says so, and ends with 1.

With --watch, it prints a line now and after each change, until it is interrupted. It
looks about every three seconds, and so can miss shorter terms.

Another process may lead by the time you read the output. Exit codes: 0; 1 without a leader;
64 for wrong usage; 69 if the server can't be reached.`,
		Example: `  distlock leader web
  distlock leader --json web | jq -r .leader.meta.address
  distlock leader --watch --json web | jq --unbuffered -r '.leader.host // "none"'`,
		Args: exactly(1, "the name of one election"),

		ValidArgsFunction: a.completeNames(1),
		RunE: func(_ *cobra.Command, args []string) error {
			return a.withClient(func(ctx context.Context, c *distlock.Client) error {
				show := func(h distlock.Holder, err error) error { return a.showLeader(args[0], h, err, asJSON, watch) }
				if watch {
					return a.watchLeaders(ctx, c.Election(args[0]), show)
				}
				h, err := c.Election(args[0]).Leader(ctx)
				if shown := show(h, err); shown != nil || err == nil {
					return shown
				}
				return &exitError{code: exitFailure} // no leader
			})
		},
	}
	cmd.Flags().BoolVar(&watch, "watch", false, "print each change")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON object; with --watch, one in each line")
	return cmd
}

// watchLeaders shows each change until ctx ends. While the server can't be reached, it goes on.
func (a *app) watchLeaders(ctx context.Context, e *distlock.Election, show func(distlock.Holder, error) error) error {
	for h, err := range e.Leaders(ctx) {
		if err = show(h, err); errors.Is(err, distlock.ErrUnavailable) {
			a.warn(err)
		} else if err != nil {
			return err
		}
	}
	return nil
}

// leaderJSON is the output of leader with --json.
type leaderJSON struct {
	Name   string       `json:"name"`
	Leader *electedJSON `json:"leader"` // null if there is none
}

// electedJSON is a holder without its owner, with which any program could release the lock.
type electedJSON struct {
	holderJSON
	Owner string `json:"owner,omitempty"` // hides the field of holderJSON
}

// showLeader prints a result of Election.Leader.
func (a *app) showLeader(name string, h distlock.Holder, err error, asJSON, line bool) error {
	none := errors.Is(err, distlock.ErrNoLeader)
	switch {
	case err != nil && !none:
		return err
	case !asJSON && none:
		a.printf("no leader\n")
		return nil
	case !asJSON:
		a.printf("%s\n", leaderLine(h, time.Now()))
		return nil
	}
	out := leaderJSON{Name: name}
	if !none {
		out.Leader = &electedJSON{holderJSON: holderToJSON(h, time.Now())}
	}
	if line {
		return json.NewEncoder(a.out).Encode(out)
	}
	return writeJSON(a.out, out)
}

// leaderLine describes a leader in one line.
func leaderLine(h distlock.Holder, now time.Time) string {
	parts := []string{plain(h.String())}
	if parts[0] == "" {
		parts[0] = "another client"
	}
	if h.Fence != 0 {
		parts = append(parts, fmt.Sprintf("fence %d", h.Fence))
	}
	if h.Held >= 0 {
		parts = append(parts, "since "+now.Add(-h.Held).Format(time.RFC3339))
	}
	return strings.Join(append(parts, metaPairs(h, "=")...), ", ")
}
