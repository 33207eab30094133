package cli

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/distlock/distlock"
)

func (a *app) showCommand() *cobra.Command {
	asJSON := false
	cmd := &cobra.Command{
		Use:   "show NAME",
		Short: "Say all that is known of one lock",
		Long: `Show describes a lock, those who hold it and those who wait. What the server does not
tell is left out or a dash: see distlock help ls.`,
		Example: "  distlock show backup",
		Args:    exactly(1, "the name of one lock"),
		RunE:    func(_ *cobra.Command, args []string) error { return a.show(args[0], asJSON) },
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON object")
	return cmd
}

func (a *app) show(name string, asJSON bool) error {
	ctx, cancel := interruptible()
	defer cancel()
	c, err := a.client(ctx)
	if err != nil {
		return err
	}
	defer a.closeClient(c)
	info, err := c.Inspect(ctx, name)
	switch {
	case err != nil:
		return err
	case asJSON:
		return writeJSON(a.out, toJSON(info, time.Now()))
	}
	return writeInfo(a.out, info, time.Now())
}

// writeInfo writes a lock in full.
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
	for _, key := range []string{"host", "pid", "program"} {
		fmt.Fprintf(w, "  %s\t%s\n", key, told(h, key))
	}
	meta := otherMeta(h)
	for _, key := range slices.Sorted(maps.Keys(meta)) {
		fmt.Fprintf(w, "  %s\t%s\n", plain(key), plain(meta[key]))
	}
	if h.Foreign {
		fmt.Fprintf(w, "  foreign\tanother library's lock, or other data\n")
	}
	fmt.Fprintf(w, "  owner\t%s\n", plain(h.Owner))
}
