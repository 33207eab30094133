package cli

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/internal/wait"
)

// The formats of ls.
const (
	formatTable = "table"
	formatWide  = "wide"
	formatJSON  = "json"
	formatNames = "name"
)

// lsOptions are the flags of ls.
type lsOptions struct {
	prefix, format, sort string
	json, watch          bool
	every                time.Duration
}

func (a *app) lsCommand() *cobra.Command {
	o := &lsOptions{format: formatTable, sort: "name", every: 2 * time.Second}
	cmd := &cobra.Command{
		Use:   "ls [PREFIX]",
		Short: "List the locks and their holders",
		Long: `Ls lists the locks that have holders or waiters, with a line for each holder: the mode,
the fence, how long the lock has been held, how long until it expires if it is not
renewed, the holder's host, process and program, and the number of waiters. With a
PREFIX, it lists only names that begin with it.

A dash means that the server does not report a value. etcd and ZooKeeper do not record
when a lock was taken, and ZooKeeper does not report when it expires. Locks that other
programs hold show fewer details.

--sort held puts the lock first that has been held longest, --sort left the lock that
expires first, and --sort waiting the lock with the most waiters. Locks whose server
does not report it come last.

With --watch, ls lists the locks again and again until it is interrupted. On a terminal
it replaces the list; elsewhere it prints the list again when a holder or a number of
waiters has changed, after an empty line; with JSON each list is one line. It can miss
shorter holds.`,
		Example: `  distlock ls
  distlock ls --watch --sort waiting
  distlock ls -o name deploy: | xargs -n1 distlock show
  distlock ls deploy: -o json | jq -r '.[].name'`,
		Args: func(cmd *cobra.Command, args []string) error { return o.parse(cmd, args) },
		RunE: func(*cobra.Command, []string) error {
			return a.withClient(func(ctx context.Context, c *distlock.Client) error {
				if o.watch {
					return a.watchList(ctx, c, o)
				}
				infos, err := list(ctx, c, o)
				if err != nil {
					return err
				}
				return a.writeList(a.out, o, infos)
			})
		},
		ValidArgsFunction: a.completeNames(1),
	}
	f := cmd.Flags()
	f.VarP(choice(&o.format, formatTable, formatWide, formatJSON, formatNames), "output", "o", "format: wide adds the permits and the metadata")
	f.BoolVar(&o.json, "json", false, "print a JSON array, as -o json")
	f.Var(choice(&o.sort, "name", "held", "waiting", "left"), "sort", "order of the locks")
	f.BoolVarP(&o.watch, "watch", "w", false, "list the locks again and again")
	f.Var(duration(&o.every, false), "every", "with --watch: the pause between two looks")
	completeFlag(cmd, "output", formatTable, formatWide, formatJSON, formatNames)
	completeFlag(cmd, "sort", "name", "held", "waiting", "left")
	return cmd
}

func (o *lsOptions) parse(cmd *cobra.Command, args []string) error {
	if err := onePrefix(cmd, args); err != nil {
		return err
	}
	switch {
	case o.json && cmd.Flags().Changed("output") && o.format != formatJSON:
		return usage("ls: --json and -o %s exclude each other; want one of them", o.format)
	case cmd.Flags().Changed("every") && !o.watch:
		return usage("ls: --every goes with --watch")
	}
	o.prefix = append(args, "")[0]
	if o.json {
		o.format = formatJSON
	}
	return nil
}

// writeList writes the locks in the format of o.
func (a *app) writeList(w io.Writer, o *lsOptions, infos []distlock.Info) error {
	switch {
	case o.format == formatJSON && o.watch:
		return json.NewEncoder(w).Encode(listJSON(infos))
	case o.format == formatJSON:
		return writeJSON(w, listJSON(infos))
	case o.format == formatNames:
		for _, info := range infos {
			fmt.Fprintln(w, plain(info.Name))
		}
		return nil
	case len(infos) > 0:
		return infoTable(infos, o.format == formatWide).write(w)
	}
	a.warnNone(o)
	return nil
}

// warnNone says that no locks are held. A list that is shown again and again does not look elsewhere each time.
func (a *app) warnNone(o *lsOptions) {
	none, hint := "no locks are held", ""
	if o.prefix != "" {
		none += " under " + quoted(o.prefix)
	}
	if !o.watch {
		hint = a.elsewhere(context.Background(), "")
	}
	a.warnf("%s%s", none, hint)
}

func listJSON(infos []distlock.Info) []lockJSON {
	all := []lockJSON{}
	for _, info := range infos {
		all = append(all, toJSON(info, time.Now()))
	}
	return all
}

// watchList lists the locks until ctx ends. While the server can't be reached, it goes on, unless that
// is so from the start.
func (a *app) watchList(ctx context.Context, c *distlock.Client, o *lsOptions) error {
	last := "none" // no list is described so
	for first := true; ; first = false {
		infos, err := list(ctx, c, o)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && (first || !errors.Is(err, distlock.ErrUnavailable)):
			return err
		case err != nil:
			a.warn(err)
		default:
			if last, err = a.showChange(o, infos, last); err != nil {
				return err
			}
		}
		if wait.Sleep(ctx, o.every) != nil {
			return nil
		}
	}
}

// showChange shows a list after another, which last describes, and returns its own description.
func (a *app) showChange(o *lsOptions, infos []distlock.Info, last string) (string, error) {
	now := describeList(o, infos)
	size := terminalSize(a.out)
	switch {
	case size != nil && o.format != formatJSON:
		return now, a.redraw(o, infos, size)
	case now == last:
		return now, nil
	case last != "none" && o.format != formatJSON:
		a.printf("\n")
	}
	return now, a.writeList(a.out, o, infos)
}

// describeList returns what a change of the list changes: not the times.
func describeList(o *lsOptions, infos []distlock.Info) string {
	var b strings.Builder
	for _, info := range infos {
		fmt.Fprintf(&b, "%q", info.Name)
		if o.format == formatNames {
			continue
		}
		fmt.Fprintf(&b, " %d", info.WaiterCount)
		for _, h := range info.Holders {
			fmt.Fprintf(&b, " %q %v %d", h.Owner, h.Mode, h.Fence)
		}
	}
	return b.String()
}

// redraw replaces the list on a terminal. It cuts off what has no room.
func (a *app) redraw(o *lsOptions, infos []distlock.Info, size func() (width, height int)) error {
	var b bytes.Buffer
	width, height := size()
	fmt.Fprintf(&b, "\x1b[H\x1b[J%s, every %v\n", time.Now().Format(time.TimeOnly), o.every)
	if len(infos) == 0 {
		b.WriteString("no locks are held\n")
	} else {
		var text bytes.Buffer
		if err := a.writeList(&text, o, infos); err != nil {
			return err
		}
		lines := slices.Collect(strings.Lines(text.String()))
		room := max(height-3, 1)
		for _, line := range lines[:min(room, len(lines))] {
			b.WriteString(truncate(strings.TrimSuffix(line, "\n"), width) + "\n")
		}
		if left := len(lines) - room; left > 0 {
			fmt.Fprintf(&b, "… and %d more lines\n", left)
		}
	}
	_, err := a.out.Write(b.Bytes())
	return err
}

// list describes all locks with a prefix, in the order of o. It omits locks that became free after
// they were listed, and other data that looked like a lock.
func list(ctx context.Context, c *distlock.Client, o *lsOptions) ([]distlock.Info, error) {
	var names []string
	for name, err := range c.List(ctx, o.prefix) {
		if err != nil {
			return nil, err
		}
		names = append(names, name)
	}
	slices.Sort(names)
	var infos []distlock.Info
	for _, name := range names {
		info, err := c.Inspect(ctx, name)
		if errors.Is(err, distlock.ErrInvalid) {
			continue // other data has replaced the lock
		}
		if err != nil {
			return nil, err
		}
		if len(info.Holders) > 0 || info.WaiterCount > 0 {
			infos = append(infos, info)
		}
	}
	sortLocks(infos, o.sort)
	return infos, nil
}

// sortLocks orders locks that are in the order of their names.
func sortLocks(infos []distlock.Info, by string) {
	slices.SortStableFunc(infos, func(a, b distlock.Info) int { return cmp.Compare(rank(a, by), rank(b, by)) })
}

// rank returns a lock's place in an order: the least comes first.
func rank(info distlock.Info, by string) int64 {
	if by == "waiting" {
		return int64(-info.WaiterCount)
	}
	least := int64(math.MaxInt64)
	for _, h := range info.Holders {
		switch {
		case by == "held" && h.Held >= 0:
			least = min(least, -int64(h.Held))
		case by == "left" && h.Left >= 0:
			least = min(least, int64(h.Left))
		}
	}
	return least
}

// infoTable has a row for each holder, and one for a free lock that has waiters.
func infoTable(infos []distlock.Info, wide bool) *table {
	t := &table{}
	row := func(cells []string, more ...string) {
		if wide {
			cells = append(cells, more...)
		}
		t.add(cells...)
	}
	row([]string{"NAME", "MODE", "FENCE", "HELD", "LEFT", "HOST", "PID", "PROGRAM", "WAITERS"}, "PERMITS", "META")
	for _, info := range infos {
		limit := dash(info.Limit > 0, strconv.Itoa(info.Limit))
		if len(info.Holders) == 0 {
			row([]string{plain(info.Name), "free", "-", "-", "-", "-", "-", "-", waiters(info)}, limit, "-")
		}
		for _, h := range info.Holders {
			row([]string{
				plain(info.Name), h.Mode.String(), fence(h), dash(h.Held >= 0, short(h.Held)), dash(h.Left >= 0, short(h.Left)),
				metaOf(h, "host"), metaOf(h, "pid"), metaOf(h, "program"), waiters(info),
			}, limit, metaList(h))
		}
	}
	return t
}

// metaList formats the metadata of a holder that has no column.
func metaList(h distlock.Holder) string {
	parts := metaPairs(h, "=")
	return dash(len(parts) > 0, strings.Join(parts, ","))
}
