package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/distlock/distlock"
)

// lockJSON is a lock in the output of ls and show with --json. Times without a unit in their name
// are RFC 3339, by this machine's clock; null means unknown.
type lockJSON struct {
	Name        string       `json:"name"`
	Mode        string       `json:"mode"`            // exclusive, write, read, counted; free
	Limit       int          `json:"limit,omitempty"` // permits of a semaphore
	Holders     []holderJSON `json:"holders"`
	Waiters     []holderJSON `json:"waiters"`      // in their order, as far as the server reports them
	WaiterCount *int         `json:"waiter_count"` // may be more than len(waiters)
}

// holderJSON is a holder or a waiter.
type holderJSON struct {
	Mode    string            `json:"mode"`
	Fence   *string           `json:"fence"` // in decimal: JSON's numbers lose digits above 2^53
	Owner   string            `json:"owner"`
	Since   *string           `json:"since"`
	HeldMS  *int64            `json:"held_ms"`
	LeftMS  *int64            `json:"left_ms"` // until it expires, if not renewed
	Host    string            `json:"host"`
	PID     *int              `json:"pid"`
	Program string            `json:"program"`
	Foreign bool              `json:"foreign,omitempty"` // another library's lock, or other data
	Meta    map[string]string `json:"meta"`              // other metadata
}

func toJSON(info distlock.Info, now time.Time) lockJSON {
	l := lockJSON{Name: info.Name, Mode: modeOf(info), Limit: info.Limit, Holders: []holderJSON{}, Waiters: []holderJSON{}}
	for _, h := range info.Holders {
		l.Holders = append(l.Holders, holderToJSON(h, now))
	}
	for _, h := range info.Waiters {
		l.Waiters = append(l.Waiters, holderToJSON(h, now))
	}
	if info.WaiterCount >= 0 {
		l.WaiterCount = &info.WaiterCount
	}
	return l
}

func holderToJSON(h distlock.Holder, now time.Time) holderJSON {
	j := holderJSON{
		Mode: h.Mode.String(), Owner: h.Owner, HeldMS: millis(h.Held), LeftMS: millis(h.Left),
		Foreign: h.Foreign, Host: h.Meta["host"], Program: h.Meta["program"], Meta: otherMeta(h),
	}
	if h.Fence != 0 {
		n := fence(h)
		j.Fence = &n
	}
	if h.Held >= 0 {
		since := now.Add(-h.Held).UTC().Format(stamp)
		j.Since = &since
	}
	if pid, err := strconv.Atoi(h.Meta["pid"]); err == nil {
		j.PID = &pid
	}
	return j
}

// standardMeta are the keys of the metadata that every client sets.
var standardMeta = []string{"host", "pid", "program"}

// otherMeta returns a holder's metadata without the standard keys.
func otherMeta(h distlock.Holder) map[string]string {
	meta := map[string]string{}
	maps.Copy(meta, h.Meta)
	maps.DeleteFunc(meta, func(key, _ string) bool { return slices.Contains(standardMeta, key) })
	return meta
}

// metaPairs formats otherMeta for a terminal, in the order of the keys.
func metaPairs(h distlock.Holder, between string) (pairs []string) {
	meta := otherMeta(h)
	for _, key := range slices.Sorted(maps.Keys(meta)) {
		pairs = append(pairs, plain(key)+between+plain(meta[key]))
	}
	return pairs
}

func millis(d time.Duration) *int64 {
	if d < 0 {
		return nil
	}
	ms := d.Milliseconds()
	return &ms
}

// modeOf returns the mode of a lock, or "free".
func modeOf(info distlock.Info) string {
	if len(info.Holders) == 0 {
		return "free"
	}
	return info.Mode.String()
}

func writeJSON(w io.Writer, v any) error {
	var text, escaped strings.Builder
	e := json.NewEncoder(&text)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return err
	}
	for _, r := range text.String() { // JSON leaves some of those as they are that a terminal obeys
		if unicode.IsControl(r) && r != '\n' {
			fmt.Fprintf(&escaped, "\\u%04x", r)
		} else {
			escaped.WriteRune(r)
		}
	}
	_, err := io.WriteString(w, escaped.String())
	return err
}

// dash formats a value as text, or as a dash if the server does not report it.
func dash(known bool, text string) string {
	if !known {
		return "-"
	}
	return text
}

func fence(h distlock.Holder) string { return dash(h.Fence != 0, strconv.FormatUint(h.Fence, 10)) }

func metaOf(h distlock.Holder, key string) string { return dash(h.Meta[key] != "", plain(h.Meta[key])) }

func waiters(info distlock.Info) string {
	return dash(info.WaiterCount >= 0, strconv.Itoa(info.WaiterCount))
}

func (a *app) showCommand() *cobra.Command {
	asJSON := false
	cmd := &cobra.Command{
		Use:   "show NAME",
		Short: "Show the details of one lock",
		Long: `Show describes a lock with its holders and waiters. Values that the server does not
report are omitted or shown as a dash: see distlock help ls.

Exit codes: 0; 1 if nobody holds the lock; 64 for wrong usage; 69 if the server can't be
reached.`,
		Example: `  distlock show backup
  distlock show --json backup >/dev/null && echo "a backup is running"`,
		Args: exactly(1, "the name of one lock"),

		ValidArgsFunction: a.completeNames(1),
		RunE: func(_ *cobra.Command, args []string) error {
			return a.withClient(func(ctx context.Context, c *distlock.Client) error {
				info, err := c.Inspect(ctx, args[0])
				if err != nil {
					return err
				}
				return a.show(ctx, info, asJSON)
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON object")
	return cmd
}

// show prints a lock. For one that nobody holds, the error has the exit code.
func (a *app) show(ctx context.Context, info distlock.Info, asJSON bool) (err error) {
	if asJSON {
		err = writeJSON(a.out, toJSON(info, time.Now()))
	} else {
		err = writeInfo(a.out, info, time.Now())
	}
	if err != nil || len(info.Holders) > 0 {
		return err
	}
	if !asJSON {
		if hint := a.elsewhere(ctx, info.Name); hint != "" {
			a.warnf("%s is free%s", quoted(info.Name), hint)
		}
	}
	return &exitError{code: exitFailure}
}

// writeInfo writes all details of a lock.
func writeInfo(w io.Writer, info distlock.Info, now time.Time) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "name\t%s\n", plain(info.Name))
	fmt.Fprintf(t, "mode\t%s\n", modeOf(info))
	if info.Limit > 0 {
		fmt.Fprintf(t, "permits\t%d of %d taken\n", len(info.Holders), info.Limit)
	}
	fmt.Fprintf(t, "waiters\t%s\n", waiters(info))
	for i, h := range info.Holders {
		writeHolder(t, fmt.Sprintf("holder %d", i+1), h, now)
	}
	for i, h := range info.Waiters {
		writeHolder(t, fmt.Sprintf("waiter %d", i+1), h, now)
	}
	return t.Flush()
}

func writeHolder(w io.Writer, title string, h distlock.Holder, now time.Time) {
	fmt.Fprintf(w, "\n%s\n", title)
	fmt.Fprintf(w, "  mode\t%s\n", h.Mode)
	if h.Fence != 0 {
		fmt.Fprintf(w, "  fence\t%d\n", h.Fence)
	}
	if h.Held >= 0 {
		fmt.Fprintf(w, "  since\t%s (%s)\n", now.Add(-h.Held).Format(time.RFC3339), short(h.Held))
	}
	if h.Left >= 0 {
		fmt.Fprintf(w, "  left\t%s unless renewed\n", short(h.Left))
	}
	for _, key := range standardMeta {
		fmt.Fprintf(w, "  %s\t%s\n", key, metaOf(h, key))
	}
	for _, pair := range metaPairs(h, "\t") {
		fmt.Fprintf(w, "  %s\n", pair)
	}
	if h.Foreign {
		fmt.Fprintf(w, "  foreign\tanother library's lock, or other data\n")
	}
	fmt.Fprintf(w, "  owner\t%s\n", plain(h.Owner))
}

func (a *app) unlockCommand() *cobra.Command {
	var ask, force, foreign bool
	cmd := &cobra.Command{
		ValidArgsFunction: a.completeNames(1),

		Use:   "unlock --ask|--force NAME",
		Short: "Ask a holder for its lock, or break the lock of a dead holder",
		Long: `Unlock --ask asks all holders of a lock to release it. ZooKeeper supports that, and
a distlock server before a memory store. It does not wait until they do: distlock run
stops its command, other programs do what they were written to do.

Unlock --force takes a lock away from all its holders. They notice it only at their next
renewal and work on until then: make sure that they are dead or stopped.

In a Redis that other programs use, a string with a TTL may be the lock of another library
or other data. --force leaves it alone. With --foreign as well, it deletes it.

Both affect only the current holders, not later ones. The lock of a dead process expires
by itself with its TTL; see "left" in distlock show.

Exit code 1: the lock is free, or with --ask, a holder does not listen to requests.`,
		Example: "  distlock --url zk://localhost:2181 unlock --ask backup\n  distlock show backup\n  distlock unlock --force backup",
		Args: func(cmd *cobra.Command, args []string) error {
			if err := exactly(1, "the name of one lock")(cmd, args); err != nil {
				return err
			}
			switch {
			case ask && force:
				return usage("unlock: --ask and --force exclude each other; want one of them")
			case foreign && !force:
				return usage("unlock: --foreign goes with --force; want both or none")
			case !ask && !force:
				return usage("unlock: want distlock unlock --ask NAME, which asks the holder to release the lock, or, if the holder is dead or stopped for sure, distlock unlock --force NAME, which takes it away")
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error {
			return a.withClient(func(ctx context.Context, c *distlock.Client) error {
				if ask {
					return a.unlock(ctx, c, args[0], "asked", c.Revoke)
				}
				return a.unlock(ctx, c, args[0], "broke", func(ctx context.Context, info distlock.Info) error {
					return breakLock(ctx, c, info, foreign)
				})
			})
		},
	}
	cmd.Flags().BoolVar(&ask, "ask", false, "ask the holders to release it")
	cmd.Flags().BoolVar(&force, "force", false, "take it away from the holders")
	cmd.Flags().BoolVar(&foreign, "foreign", false, "with --force: delete it even if another program wrote it")
	return cmd
}

// breakLock breaks a lock. One of another program needs foreign.
func breakLock(ctx context.Context, c *distlock.Client, info distlock.Info, foreign bool) error {
	for i, h := range info.Holders {
		if h.Foreign && !foreign {
			return usage("unlock: distlock did not write the value of %s, and --force would delete it; if it is the lock of a dead holder, use distlock unlock --force --foreign NAME",
				quoted(info.Name))
		}
		info.Holders[i].Foreign = false
	}
	return c.ForceUnlock(ctx, info)
}

// unlock calls do for the current holders of a lock.
func (a *app) unlock(ctx context.Context, c *distlock.Client, name, did string, do func(context.Context, distlock.Info) error) error {
	info, err := c.Inspect(ctx, name)
	if err != nil {
		return err
	}
	if len(info.Holders) > 0 {
		err = do(ctx, info)
	}
	switch {
	case len(info.Holders) == 0 || errors.Is(err, distlock.ErrLost):
		return exit(exitFailure, "unlock: %s is not held", quoted(name))
	case errors.Is(err, distlock.ErrUnsupported) && c.Caps().Revocable.Has(info.Mode):
		return exit(exitFailure, "unlock: a holder of %s does not listen to requests", quoted(name))
	case errors.Is(err, distlock.ErrUnsupported):
		return usage("unlock: %s can't ask holders for their locks; want ZooKeeper, a server before a memory store, or --force", c.Caps().Name)
	case err != nil:
		return err
	}
	for _, h := range info.Holders {
		a.printf("%s %s: %s hold, fence %s, %s\n", did, plain(name), h.Mode, fence(h), plain(describe([]distlock.Holder{h})))
	}
	return nil
}
