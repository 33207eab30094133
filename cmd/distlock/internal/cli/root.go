// Package cli is the command distlock: everything but its main function.
//
//	root.go       the root command, version and completion
//	app.go        what all commands share: output, exit codes, messages without passwords, kinds of flags
//	text.go       tables, and lines of a terminal that are updated
//	signals.go    the signals that end a wait or a command
//	whole.go      what becomes of it for a backend whose client starts slowly
//	open.go       from a URL, a config file or neither to a client; the names of locks for completion
//	run.go        holds locks while a command runs; acquire.go, outcome.go and package job belong to it
//	options.go    the flags of run, elect and lock
//	cron.go       run, for a command that many hosts start at the same time
//	elect.go      runs a command while it is the elected leader; shows the leader
//	lock.go       lock, renew and release: holds that outlive the command
//	ls.go         ls
//	info.go       show and unlock, and the descriptions of locks
//	elsewhere.go  locks under another prefix of the same server, for ls and show
//	top.go        the locks live, in a terminal
//	advise.go     TTLs and waits, from samples; its parts are package advice
//	verify.go     runs the conformance checks against the user's own server; prints the statements that make tables
//	serve.go      serves the locks of a backend over HTTP
//	demo*.go      a shop that sells more than it has; a server with busy locks
//
// # How run keeps its promise
//
// The command runs in its own process group, so that it can be stopped as a whole. One goroutine
// forwards signals, watches the deadline of the leases, and notices stops and exits. The group is
// signalled to stop before another client can get the lock. Renewals postpone that moment.
//
// On Linux, the command dies with distlock, even if distlock is killed. The lock of a killed
// distlock then ends with its TTL, and no other client works under it until then.
package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/redis/go-redis/v9/logging"
	"github.com/spf13/cobra"

	"github.com/distlock/distlock/cmd/distlock/internal/job"
)

// Main runs the program with the arguments of the process, and returns its exit code.
func Main() int {
	// Errors are reported once, by this program. The Redis client would also log them.
	logging.Disable()
	if err := becomeWhole(os.Args[1:]); err != nil {
		fmt.Fprint(os.Stderr, message(err, nil))
		return codeOf(err)
	}
	return run(os.Args[1:], os.Stdout, os.Stderr)
}

// Command returns all commands with their help, for the manual pages.
func Command() *cobra.Command { return (&app{}).rootCommand() }

func run(args []string, stdout, stderr io.Writer) int {
	out := &printer{w: stdout}
	a := &app{args: args, out: out, err: stderr, secrets: secretsOf(args)}
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
	if e, ok := errors.AsType[*exitError](err); ok && e.interrupted {
		job.DieOfInterrupt()
	}
	return codeOf(err)
}

const rootHelp = `distlock holds a lock while a command runs, runs a scheduled command once over many hosts, or
a service on one of them, shows who holds which locks, and checks the server that stores them.

The server's URL comes from --url, from the environment variable ` + urlVariable + `, or from a
config file with that one line: a service's credential distlock.url (LoadCredential of
systemd), ~/.config/distlock/url or /etc/distlock.url, which cron jobs see too. Examples:
redis://localhost:6379, etcd://localhost:2379, zk://localhost:2181, s3://bucket/locks,
mysql://user:password@localhost:3306/app, postgres://user:password@localhost:5432/app,
sqlite:/path/to/locks.db, and http://localhost:7077 for a server ("distlock serve"). For etcd and S3,
distlock becomes the command distlock-all, which is beside it or on the PATH. Without a
URL, or with --local, the locks are stored in a SQLite file in the user's state directory.
Only this user's processes on this host see them.`

func (a *app) rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "distlock",
		Short: "Locks across processes and machines",
		Long:  rootHelp,
		Example: `  distlock run backup -- ./backup.sh
  distlock cron nightly -- make report
  distlock elect scheduler -- ./scheduler
  distlock --url redis://localhost:6379 ls
  distlock verify redis://localhost:6379`,
		Args:          noCommand,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       version(),
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return badFlag(cmd, err, "") })
	root.SetVersionTemplate("distlock {{.Version}}\n")
	root.PersistentFlags().Var(&a.url, "url", "URL of the server (default $"+urlVariable+", else a config file, else as --local)")
	root.PersistentFlags().BoolVar(&a.local, "local", false, "store the locks in a file of this user, for this host only")
	root.AddCommand(a.runCommand(), a.cronCommand(), a.electCommand(), a.leaderCommand(), a.lockCommand(), a.renewCommand(), a.releaseCommand(),
		a.lsCommand(), a.showCommand(), a.unlockCommand(), a.topCommand(), a.adviseCommand(), a.verifyCommand(),
		a.serveCommand(), a.tokenCommand(), a.schemaCommand(), a.demoCommand(), a.versionCommand(), a.completionCommand())
	root.SetHelpCommand(helpCommand())
	return root
}

// noCommand rejects an unknown command. Cobra's own error would have lines of suggestions.
func noCommand(root *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	var names []string
	for _, c := range root.Commands() {
		names = append(names, c.Name())
	}
	return usage("unknown command %q; %s", args[0], cmp.Or(didYouMean(args[0], names, ""), "want "+oneOf(names)))
}

// helpCommand replaces cobra's own, which accepts unknown commands.
func helpCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND]",
		Short: "Describe a command",
		RunE: func(cmd *cobra.Command, args []string) error {
			about, rest, err := cmd.Root().Find(args)
			if err != nil || len(rest) > 0 {
				return usage("help: unknown command %q; see distlock help", strings.Join(args, " "))
			}
			about.InitDefaultHelpFlag()
			about.InitDefaultVersionFlag()
			return about.Help()
		},
	}
}

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  exactly(0, "none"),
		RunE: func(*cobra.Command, []string) error {
			a.printf("distlock %s\n", version())
			return nil
		},
	}
}

func (a *app) completionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "completion SHELL",
		Short: "Print a script for command-line completion",
		Long:  "Completion prints a script for bash, zsh, fish or powershell.",
		Example: `  source <(distlock completion bash)
  distlock completion fish > ~/.config/fish/completions/distlock.fish`,
		ValidArgs: []string{"bash", "zsh", "fish", "powershell"},
		Args:      exactly(1, "one of bash, zsh, fish and powershell"),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch root := cmd.Root(); args[0] {
			case "bash":
				return root.GenBashCompletionV2(a.out, true)
			case "zsh":
				return root.GenZshCompletion(a.out)
			case "fish":
				return root.GenFishCompletion(a.out, true)
			case "powershell":
				return root.GenPowerShellCompletionWithDesc(a.out)
			}
			return usage("completion: unknown shell %q; want one of bash, zsh, fish and powershell", args[0])
		},
	}
}
