package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/redis/go-redis/v9/logging"
	"github.com/spf13/cobra"
)

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

// helpCommand takes the place of cobra's own, which finds nothing wrong with the
// name of no command.
func helpCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND]",
		Short: "Say what a command does",
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

func (a *app) completionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "completion SHELL",
		Short: "Print what makes a shell complete distlock's arguments",
		Long:  "Completion prints a script for bash, zsh, fish or powershell.",
		Example: `  source <(distlock completion bash)
  distlock completion fish > ~/.config/fish/completions/distlock.fish`,
		ValidArgs: []string{"bash", "zsh", "fish", "powershell"},
		Args:      exactly(1, "one of bash, zsh, fish and powershell"),
		RunE:      func(cmd *cobra.Command, args []string) error { return a.complete(cmd.Root(), args[0]) },
	}
}

func (a *app) complete(root *cobra.Command, shell string) error {
	switch shell {
	case "bash":
		return root.GenBashCompletionV2(a.out, true)
	case "zsh":
		return root.GenZshCompletion(a.out)
	case "fish":
		return root.GenFishCompletion(a.out, true)
	case "powershell":
		return root.GenPowerShellCompletionWithDesc(a.out)
	}
	return usage("completion: unknown shell %q; want one of bash, zsh, fish and powershell", shell)
}

// version is what the Go toolchain knows of this build.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "(unknown)"
	}
	v := cmp.Or(info.Main.Version, "(devel)")
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && len(s.Value) >= 12 && v == "(devel)" {
			v += " " + s.Value[:12]
		}
	}
	return v + " " + runtime.Version() + " " + runtime.GOOS + "/" + runtime.GOARCH
}

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Say which version this is",
		Args:  exactly(0, "none"),
		RunE: func(*cobra.Command, []string) error {
			a.printf("distlock %s\n", version())
			return nil
		},
	}
}
