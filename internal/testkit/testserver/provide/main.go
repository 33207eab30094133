// Provide installs the servers that the tests need; make servers runs it.
package main

import (
	"fmt"
	"os"

	"github.com/distlock/distlock/internal/testkit/testserver"
)

func main() {
	if err := testserver.Provide(os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "servers:", err)
		os.Exit(1)
	}
}
