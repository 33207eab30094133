// Command distlock holds a lock while a command runs, tells who holds what, and
// checks servers. See distlock --help. For etcd and S3 it becomes the command distlock-all.
package main

import (
	"os"

	"github.com/distlock/distlock/cmd/distlock/internal/cli"
)

func main() { os.Exit(cli.Main()) }
