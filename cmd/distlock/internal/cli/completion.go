package cli

import (
	"context"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/distlock/distlock/driver"
)

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

// Bounds of a completion. The user waits for it with a finger on the key.
const (
	completionTimeout = 2 * time.Second
	maxCompletions    = 500
)

// completeNames returns a function that completes the first most arguments by names of locks that are
// held or waited for; -1 means all arguments before --.
func (a *app) completeNames(most int) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, start string) ([]cobra.Completion, cobra.ShellCompDirective) {
		switch {
		case slices.Contains(a.args[:max(len(a.args)-1, 0)], "--"):
			return nil, cobra.ShellCompDirectiveDefault // the command to run, and its files
		case most >= 0 && len(args) >= most:
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return a.namesOf(start), cobra.ShellCompDirectiveNoFileComp
	}
}

// namesOf returns names of locks that begin with start. Without an answer in time it returns what it has.
func (a *app) namesOf(start string) (names []string) {
	ctx, cancel := context.WithTimeout(context.Background(), completionTimeout)
	defer cancel()
	b, err := a.openBackend(ctx)
	if err != nil {
		return nil
	}
	defer b.Close()
	if lister, ok := b.(driver.Inspector); ok {
		_ = lister.List(ctx, start, func(name string) bool {
			if !strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }) {
				names = append(names, name) // a script takes the others for several lines
			}
			return len(names) < maxCompletions
		})
	}
	slices.Sort(names)
	return names
}

// completeFlag completes the values of a flag.
func completeFlag(cmd *cobra.Command, flag string, words ...string) {
	if err := cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic(err) // there is no such flag, which every start shows
	}
}
