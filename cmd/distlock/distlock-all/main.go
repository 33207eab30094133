// Command distlock-all is the command distlock with all backends. Distlock becomes it for a URL of a backend that it has not.
package main

import (
	"os"

	_ "github.com/distlock/distlock/backend/all"
	"github.com/distlock/distlock/cmd/distlock/internal/cli"
)

func main() { os.Exit(cli.Main()) }
