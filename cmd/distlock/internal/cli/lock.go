package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/distlock/distlock"
)

// ownerVariable is the environment variable with the owners of the locks that are held.
const ownerVariable = "DISTLOCK_OWNER"

const lockHelp = `Lock acquires a lock that is still held when it has ended, for scripts that hold it over
several commands. Where the whole work is one command, distlock run is better: it renews
the lock, and stops the command if the lock is lost.

The lock is held for --ttl, and no longer unless distlock renew prolongs it. Nothing stops
a script that goes on for longer: then another client gets the lock. Choose a TTL for the
longest step, and renew before each step. distlock release ends it.

Lock prints the owner, with which any client of the server can renew and release the lock:
keep it secret. With --owner-file, it writes the owner to a file that only this user can
read, and prints the fencing token instead, which is greater than all before it.

The locks must outlive their connection. They do in SQLite, in Redis, in the tables of
MySQL and PostgreSQL, in etcd, Kubernetes and S3, and through distlock serve.

Exit codes:
  1    another failure
  64   wrong usage, a right that is missing, or a server whose locks end with their connection
  69   the server can't be reached
  75   busy: another client holds the lock, even after --wait
  76   the lock was lost before its owner was printed`

func (a *app) lockCommand() *cobra.Command {
	o := newRunOptions()
	o.onAsk = askIgnore // there is no process to tell
	file := ""
	cmd := &cobra.Command{
		Use:   "lock --ttl DURATION [flags] NAME",
		Short: "Acquire a lock and leave it held, for scripts",
		Long:  lockHelp,
		Example: `  owner=$(distlock lock --ttl 5m deploy) || exit
  trap 'DISTLOCK_OWNER=$owner distlock release deploy' EXIT
  ./build
  DISTLOCK_OWNER=$owner distlock renew --ttl 5m deploy || exit
  ./upload`,
		Args: func(cmd *cobra.Command, args []string) error {
			o.verb, o.names, o.command = "lock", args, []string{parentProgram()}
			o.waitSet = cmd.Flags().Changed("wait")
			if err := wantTTL(cmd, args, o.ttl); err != nil {
				return err
			}
			if info, err := os.Lstat(file); err == nil && !info.Mode().IsRegular() {
				return usage("lock: --owner-file %s is no regular file, and would be replaced; want a file, or a name that is free", file)
			}
			return o.check()
		},
		RunE:                  func(*cobra.Command, []string) error { return a.lockAndLeave(o, file) },
		DisableFlagsInUseLine: true,
		ValidArgsFunction:     a.completeNames(1),
	}
	o.addWaitFlags(cmd)
	f := cmd.Flags()
	f.Var(duration(&o.ttl, false), "ttl", "how long the lock is held unless it is renewed")
	f.Var(pairs(o.meta), "meta", "metadata for ls and show (may be repeated)")
	f.BoolVarP(&o.quiet, "quiet", "q", false, "do not report waiting")
	f.Var(nonEmpty(&file), "owner-file", "write the owner to this file, and print the fence")
	return cmd
}

// wantTTL checks the arguments of lock and renew: a name and a TTL.
func wantTTL(cmd *cobra.Command, args []string, ttl time.Duration) error {
	if err := exactly(1, "the name of one lock")(cmd, args); err != nil {
		return err
	}
	if ttl == 0 {
		return usage("%s: no --ttl; want how long the lock is to be held without another renewal, such as --ttl 5m", cmd.Name())
	}
	return nil
}

// lockAndLeave acquires the lock, prints its owner and leaves it held.
func (a *app) lockAndLeave(o *runOptions, file string) (err error) {
	// As for run: a signal in the last moment would leave a lock without a known owner.
	signals := newSignals()
	ctx, endWait := signals.interrupt(context.Background())
	o.meta["pid"] = cmp.Or(o.meta["pid"], strconv.Itoa(os.Getppid()))
	t, err := a.newAcquirer(ctx, o)
	endWait()
	if err != nil {
		return cmp.Or(caughtBy(ctx), err)
	}
	defer func() { err = a.closeAfter(err, t.client, signals, closeTimeout) }()
	if caught := caughtBy(ctx); caught != nil {
		return caught
	}
	if caps := t.client.Caps(); !caps.Detached {
		return usage("lock: the locks of %s end with their connection, and so with this command; want distlock run, or another server (see distlock help lock)", caps.Name)
	}
	if err := checkFree(t.client, file); err != nil {
		return err
	}
	leases, err := t.acquireUnlessCaught(signals, 0)
	if err != nil {
		return a.outcomeOfWait(o, err)
	}
	return a.leaveHeld(leases.Leases()[0], file)
}

// checkFree returns an error if a file has the owner of a lock that is held, as far as a look at the locks tells.
func checkFree(c *distlock.Client, file string) error {
	text, err := os.ReadFile(file)
	owner := strings.TrimSpace(string(text))
	if err != nil || owner == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), answerTimeout)
	defer cancel()
	for name, err := range c.List(ctx, "") {
		if err != nil {
			break
		}
		info, _ := c.Inspect(ctx, name)
		if slices.ContainsFunc(info.Holders, func(h distlock.Holder) bool { return h.Owner == owner }) {
			return usage("lock: --owner-file %s has the owner of lock %s, which is held; want another file, or distlock release first", file, quoted(name))
		}
	}
	return nil
}

// leaveHeld detaches a lease once its owner is written. A lock whose owner is not known to the user is
// released.
func (a *app) leaveHeld(lease *distlock.Lease, file string) error {
	a.secrets = append(a.secrets, lease.Owner())
	if err := a.writeOwner(lease, file); err != nil {
		return errors.Join(err, lease.Unlock(context.Background()))
	}
	ctx, cancel := context.WithTimeout(context.Background(), answerTimeout)
	defer cancel()
	if _, err := lease.Detach(ctx); err != nil {
		return exit(exitLost, "lock: the lock was lost: %w", err)
	}
	return nil
}

// writeOwner writes the owner to a file, and the fence to the standard output; without a file, the owner.
func (a *app) writeOwner(lease *distlock.Lease, file string) error {
	if file == "" {
		_, err := fmt.Fprintln(a.out, lease.Owner())
		return err
	}
	if err := writePrivate(file, lease.Owner()+"\n"); err != nil {
		return fmt.Errorf("lock: can't write the owner: %w", err)
	}
	_, err := fmt.Fprintln(a.out, lease.Fence())
	if err != nil {
		err = errors.Join(err, removeOwner(file, lease.Owner()))
	}
	return err
}

// writePrivate replaces a file by one that only this user can read.
func writePrivate(file, text string) error {
	f, err := os.CreateTemp(filepath.Dir(file), ".distlock-*") // its mode is 0600
	if err != nil {
		return err
	}
	_, err = io.WriteString(f, text)
	if err = cmp.Or(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), file)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

// parentProgram returns the name of the program that started this one, if the system tells it.
func parentProgram() string {
	name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", os.Getppid()))
	return cmp.Or(strings.TrimSpace(string(name)), "script")
}

func (a *app) renewCommand() *cobra.Command {
	ttl, file := time.Duration(0), ""
	cmd := &cobra.Command{
		Use:   "renew --ttl DURATION [--owner-file FILE] NAME",
		Short: "Prolong a lock that distlock lock acquired",
		Long: `Renew makes a lock last for at least --ttl from now. It never shortens that. The owner
comes from --owner-file or from the environment variable ` + ownerVariable + `.

Exit codes: 76 if the lock is lost: stop the work that it protects. 69 if the server can't
be reached: the lock is held until its TTL ends, so try again. 64 for wrong usage.`,
		Example: `  distlock renew --ttl 5m --owner-file ./owner deploy || exit`,
		Args:    func(cmd *cobra.Command, args []string) error { return wantTTL(cmd, args, ttl) },
		RunE: func(_ *cobra.Command, args []string) error {
			owner, err := givenOwner(file)
			if err != nil {
				return usage("renew: %w", err)
			}
			return a.withLease("renew", args[0], owner, func(ctx context.Context, lease *distlock.Lease) error {
				_, err := lease.Detach(ctx)
				return err
			}, distlock.WithTTL(ttl))
		},
		DisableFlagsInUseLine: true,
		ValidArgsFunction:     a.completeNames(1),
	}
	cmd.Flags().Var(duration(&ttl, false), "ttl", "how long the lock is held from now on")
	addOwnerFile(cmd, &file)
	return cmd
}

func (a *app) releaseCommand() *cobra.Command {
	file := ""
	cmd := &cobra.Command{
		Use:   "release [--owner-file FILE] NAME",
		Short: "Release a lock that distlock lock acquired",
		Long: `Release ends a lock. The owner comes from --owner-file or from the environment variable
` + ownerVariable + `. It never ends the lock of another owner. --owner-file is removed once the lock
was released.

Exit codes: 76 if the lock had been lost before: another client may have had it meanwhile. 69 if
the server can't be reached: the lock ends with its TTL. 64 for wrong usage.`,
		Example: `  distlock release --owner-file ./owner deploy`,
		Args:    exactly(1, "the name of one lock"),
		RunE: func(_ *cobra.Command, args []string) error {
			owner, err := givenOwner(file)
			if err != nil {
				return usage("release: %w", err)
			}
			err = a.withLease("release", args[0], owner, func(ctx context.Context, lease *distlock.Lease) error { return lease.Unlock(ctx) })
			if err != nil || file == "" { // it may be the owner of another lock
				return err
			}
			return removeOwner(file, owner)
		},
		DisableFlagsInUseLine: true,
		ValidArgsFunction:     a.completeNames(1),
	}
	addOwnerFile(cmd, &file)
	return cmd
}

// removeOwner removes an owner's file, unless the next holder has written its own there.
func removeOwner(file, owner string) error {
	aside := file + ".released"
	if err := os.Rename(file, aside); err != nil {
		return err
	}
	text, err := os.ReadFile(aside)
	if err == nil && strings.TrimSpace(string(text)) != owner {
		return os.Rename(aside, file)
	}
	return cmp.Or(err, os.Remove(aside))
}

func addOwnerFile(cmd *cobra.Command, file *string) {
	cmd.Flags().Var(nonEmpty(file), "owner-file", "file with the owner (default: $"+ownerVariable+")")
}

// withLease calls f with a lease on the hold of an owner.
func (a *app) withLease(verb, name, owner string, f func(context.Context, *distlock.Lease) error, opts ...distlock.LockOption) error {
	a.secrets = append(a.secrets, owner)
	return a.withClient(func(ctx context.Context, c *distlock.Client) error {
		lease, err := c.Attach(ctx, name, owner, opts...)
		if err == nil {
			err = f(ctx, lease)
		}
		if errors.Is(err, distlock.ErrLost) {
			return exit(exitLost, "%s: lock %s is not held by this owner any more", verb, quoted(name))
		}
		return err
	})
}

// givenOwner returns the owner in a file; without one, that in the environment.
func givenOwner(file string) (string, error) {
	text, from := os.Getenv(ownerVariable), ownerVariable
	if file != "" {
		info, err := os.Stat(file)
		if err != nil {
			return "", fmt.Errorf("%w; want a file that distlock lock --owner-file has written", err)
		}
		if mode := info.Mode().Perm(); mode&0o077 != 0 && runtime.GOOS != "windows" {
			return "", fmt.Errorf("%s: mode %04o lets other users read or write the owner; want chmod go=", file, mode)
		}
		b, err := os.ReadFile(file)
		if err != nil {
			return "", err
		}
		text, from = string(b), file
	}
	owners := strings.Fields(text)
	switch {
	case len(owners) == 0 && file == "":
		return "", fmt.Errorf("no owner; want --owner-file or %s, from distlock lock", ownerVariable)
	case len(owners) != 1:
		return "", fmt.Errorf("%s has %d owners; want one", from, len(owners))
	}
	return owners[0], nil
}
