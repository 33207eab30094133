package sqlitelock_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/backend/sqlitelock"
)

// The processes of one host share a file, which the first process creates.
func ExampleOpenFile() {
	dir, err := os.MkdirTemp("", "app")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if err := report(context.Background(), filepath.Join(dir, "locks.db")); err != nil {
		log.Fatal(err)
	}
	// Output: the only one on this host
}

func report(ctx context.Context, path string) error {
	backend, err := sqlitelock.OpenFile(ctx, path, &sqlitelock.Options{Synchronous: sqlitelock.Normal})
	if err != nil {
		return err
	}
	locks, err := distlock.New(backend, nil)
	if err != nil {
		return err
	}
	defer locks.Close()

	// Was: flock.New("/run/app/report.lock").Lock()
	return locks.Mutex("report").Do(ctx, func(ctx context.Context) error {
		fmt.Println("the only one on this host") // ctx ends in time if the lock is lost
		return nil
	})
}
