package mysqllock_test

import (
	"context"
	"database/sql"
	"log"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/backend/mysqllock"
)

func charge(context.Context, uint64) error { return nil }

// A program that has a pool already brings it along.
func ExampleNew() {
	if err := run(context.Background(), "app:password@tcp(localhost:3306)/app"); err != nil {
		log.Print(err)
	}
}

func run(ctx context.Context, dsn string) error {
	db, err := sql.Open("mysql", dsn)
	if err != nil {
		return err
	}
	defer db.Close() // distlock leaves it open
	backend, err := mysqllock.New(ctx, db, &mysqllock.Options{Create: true})
	if err != nil {
		return err
	}
	locks, err := distlock.New(backend, nil)
	if err != nil {
		return err
	}
	defer locks.Close()

	// Was: INSERT INTO locks (name) VALUES ('order:7'); …; DELETE FROM locks WHERE name = 'order:7'
	return locks.Mutex("order:7").Do(ctx, func(ctx context.Context) error {
		return charge(ctx, distlock.Fence(ctx)) // ctx ends in time if the lock is lost
	})
}
