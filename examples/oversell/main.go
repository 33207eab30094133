// Oversell shows what a lock is for: four processes sell five items, first without a lock, then with one. It compiles in less
// time than the whole command, of which "distlock demo oversell" does the same.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/distlock/distlock"
	_ "github.com/distlock/distlock/backend/sqlitelock"
	"github.com/distlock/distlock/internal/oversell"
)

const next = `
Next:  copy a program                 examples/README.md
       the command, and what it does  make install && distlock demo serve
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) > 0 {
		return oversell.Buy(ctx, os.Stdin, os.Stdout, open)
	}
	dir, err := os.MkdirTemp("", "oversell-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	demo := oversell.Demo{Printf: func(format string, args ...any) { fmt.Printf(format, args...) }, Buyer: []string{"buyer"}}
	if err := demo.Run(ctx, "sqlite:"+filepath.ToSlash(filepath.Join(dir, "locks.db"))); err != nil {
		return err
	}
	fmt.Print(next)
	return nil
}

func open(ctx context.Context, url string) (*distlock.Client, error) {
	return distlock.Open(ctx, url, nil)
}
