package cli

import (
	"context"
	"errors"
	"io"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/distlock/distlock"
)

func (a *app) lsCommand() *cobra.Command {
	asJSON := false
	cmd := &cobra.Command{
		Use:   "ls [PREFIX]",
		Short: "Say who holds what",
		Long: `Ls lists the locks that are held or waited for, with a line for each holder: how
the lock is held, its fence, since when, how long until it ends if it is not renewed,
by whom, and how many wait. With a PREFIX only the names that begin with it.

A dash stands for what the server does not tell. etcd and ZooKeeper do not record since
when a lock is held, and ZooKeeper does not tell when it would end. Less is known of
locks that other programs hold.`,
		Example: `  distlock ls
  distlock ls deploy: --json | jq -r '.[].name'`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usage("ls: got %d arguments; want one prefix or none", len(args))
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error {
			return a.ls(append(args, "")[0], asJSON)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON array")
	return cmd
}

func (a *app) ls(prefix string, asJSON bool) error {
	ctx, cancel := interruptible()
	defer cancel()
	c, err := a.client(ctx)
	if err != nil {
		return err
	}
	defer a.closeClient(c)
	infos, err := list(ctx, c, prefix)
	switch {
	case err != nil:
		return err
	case asJSON:
		return writeJSON(a.out, allToJSON(infos))
	case len(infos) == 0:
		a.warnf("no locks are held%s", underPrefix(prefix))
		return nil
	}
	return writeTable(a.out, infos)
}

func underPrefix(prefix string) string {
	if prefix == "" {
		return ""
	}
	return " under " + quoted(prefix)
}

// list describes all locks under a prefix, sorted by name. What became free between
// being listed and being looked at is left out, and so is other data that looked like a lock.
func list(ctx context.Context, c *distlock.Client, prefix string) ([]distlock.Info, error) {
	var names []string
	for name, err := range c.List(ctx, prefix) {
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
			continue // other data, by now
		}
		if err != nil {
			return nil, err
		}
		if len(info.Holders) > 0 || info.WaiterCount > 0 {
			infos = append(infos, info)
		}
	}
	return infos, nil
}

func allToJSON(infos []distlock.Info) []lockJSON {
	all := []lockJSON{}
	for _, info := range infos {
		all = append(all, toJSON(info, time.Now()))
	}
	return all
}

// unknown stands for what the server does not tell.
const unknown = "-"

// writeTable writes a line for each holder, and one for a lock that is only waited for.
func writeTable(w io.Writer, infos []distlock.Info) error {
	var t table
	t.add("NAME", "MODE", "FENCE", "HELD", "LEFT", "HOST", "PID", "PROGRAM", "WAITERS")
	for _, info := range infos {
		if len(info.Holders) == 0 {
			t.add(plain(info.Name), "free", "-", "-", "-", "-", "-", "-", waiters(info))
		}
		for _, h := range info.Holders {
			t.add(plain(info.Name), h.Mode.String(), fence(h), known(h.Held), known(h.Left),
				told(h, "host"), told(h, "pid"), told(h, "program"), waiters(info))
		}
	}
	return t.write(w)
}

func fence(h distlock.Holder) string {
	if h.Fence == 0 {
		return unknown
	}
	return strconv.FormatUint(h.Fence, 10)
}

func known(d time.Duration) string {
	if d < 0 {
		return unknown
	}
	return short(d)
}

func told(h distlock.Holder, key string) string {
	if v := h.Meta[key]; v != "" {
		return plain(v)
	}
	return unknown
}

func waiters(info distlock.Info) string {
	if info.WaiterCount < 0 {
		return unknown
	}
	return strconv.Itoa(info.WaiterCount)
}
