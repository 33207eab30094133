package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/redis/go-redis/v9/logging"
	"github.com/spf13/cobra"
)

// app is one run of the program.
type app struct {
	url      text   // --url
	local    bool   // --local
	location string // the URL that was opened
	out      io.Writer
	err      io.Writer
	secrets  []string // to be kept out of messages
}

// Main runs the program with the arguments of the process, and returns its exit code.
func Main() int {
	// What goes wrong is told by errors; the Redis client would tell it once more.
	logging.Disable()
	return run(os.Args[1:], os.Stdout, os.Stderr)
}

func run(args []string, stdout, stderr io.Writer) int {
	out := &printer{w: stdout}
	a := &app{out: out, err: stderr, secrets: secretsOf(args)}
	root := a.rootCommand()
	root.SetArgs(args)
	root.SetOut(out)
	root.SetErr(stderr)
	err := root.Execute()
	if out.err != nil && (err == nil || errors.Is(err, out.err)) {
		err = fmt.Errorf("can't write the output: %w", out.err)
	}
	if err != nil {
		a.warn(err)
	}
	return codeOf(err)
}

// printer is the standard output, which remembers that something could not be written. It
// is used by one goroutine.
type printer struct {
	w   io.Writer
	err error
}

func (p *printer) Write(b []byte) (int, error) {
	n, err := p.w.Write(b)
	p.err = cmp.Or(p.err, err)
	return n, err
}

const rootHelp = `distlock holds a lock while a command runs, tells who holds what, and checks the
server that keeps the locks.

The server is given by --url, by the variable ` + urlVariable + `, or by a config file with that one
line, ~/.config/distlock/url or /etc/distlock.url, which also serves cron:
redis://localhost:6379, etcd://localhost:2379, zk://localhost:2181,
mysql://user:password@localhost:3306/app, postgres://user:password@localhost:5432/app,
sqlite:/path/to/locks.db and so on. Without any of them, or with --local, the locks are
kept in a SQLite file under the user's state directory, for this user's processes on
this host.`

func (a *app) rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "distlock",
		Short: "Locks across processes and machines",
		Long:  rootHelp,
		Example: `  distlock run backup -- ./backup.sh
  distlock run --no-wait --skip-ok nightly -- make report
  distlock --url redis://localhost:6379 ls
  distlock verify redis://localhost:6379`,
		Args:          noCommand,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       version(),
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usage("%w", err) })
	root.SetVersionTemplate("distlock {{.Version}}\n")
	root.PersistentFlags().Var(&a.url, "url", "where the locks are kept (default $"+urlVariable+", else a config file, else as --local)")
	root.PersistentFlags().BoolVar(&a.local, "local", false, "keep the locks in a file of this user, for this host only")
	root.AddCommand(a.runCommand(), a.lsCommand(), a.showCommand(), a.unlockCommand(), a.verifyCommand(),
		a.schemaCommand(), a.demoCommand(), a.versionCommand(), a.completionCommand())
	root.SetHelpCommand(helpCommand())
	return root
}

// noCommand refuses what is no command. It says so itself since cobra would add
// lines of suggestions.
func noCommand(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usage("unknown command %q; want run, ls, show, unlock, verify, schema, demo, completion or version", args[0])
	}
	return nil
}

// exactly wants n arguments, named in what.
func exactly(n int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == n {
			return nil
		}
		return usage("%s: got %d arguments; want %s", cmd.Name(), len(args), what)
	}
}

// interruptible is a context that ends when somebody wants the program to end.
func interruptible() (context.Context, context.CancelFunc) {
	return signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
}

func (a *app) printf(format string, args ...any) { fmt.Fprintf(a.out, format, args...) }

func (a *app) warnf(format string, args ...any) { a.warn(fmt.Errorf(format, args...)) }

// warn prints an error. If that fails there is nobody left to tell.
func (a *app) warn(err error) { _, _ = io.WriteString(a.err, message(err, a.secrets)) }
