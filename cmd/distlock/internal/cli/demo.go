package cli

import "github.com/spf13/cobra"

func (a *app) demoCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "See what a lock is for",
		Args:  exactly(0, "oversell or serve"),
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.oversellCommand(), a.demoServeCommand(), a.buyerCommand())
	return cmd
}
