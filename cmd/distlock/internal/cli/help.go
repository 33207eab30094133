package cli

import (
	"strings"

	"github.com/spf13/cobra"
)

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
