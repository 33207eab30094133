// Command man writes the manual pages of distlock, one for each of its commands, made from their help:
//
//	SOURCE_DATE_EPOCH=$(git log -1 --format=%ct) go run ./internal/man FOLDER
//
// Their date is that in the variable, so that pages of one version are the same whenever they are made.
package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"github.com/distlock/distlock/cmd/distlock/internal/cli"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "man: want one argument, the folder for the pages")
		os.Exit(64)
	}
	if err := write(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "man:", err)
		os.Exit(1)
	}
}

func write(folder string) error {
	root := cli.Command()
	root.DisableAutoGenTag = true // it has the date
	prepare(root)
	return doc.GenManTree(root, &doc.GenManHeader{Title: "DISTLOCK", Section: "1", Source: "distlock", Manual: "distlock"}, folder)
}

// prepare makes Markdown of the help of all commands: indented lines keep their breaks.
func prepare(cmd *cobra.Command) {
	cmd.Long = indent(cmd.Long)
	for _, sub := range cmd.Commands() {
		prepare(sub)
	}
}

// indent makes blocks of code of indented lines.
func indent(help string) string {
	var b strings.Builder
	inBlock := false
	for line := range strings.Lines(help) {
		block := strings.HasPrefix(line, "  ")
		if block != inBlock {
			b.WriteString("\n")
		}
		if inBlock = block; block {
			line = "  " + line
		}
		b.WriteString(line)
	}
	return b.String()
}
