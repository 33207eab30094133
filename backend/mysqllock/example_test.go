package mysqllock_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/backend/mysqllock"
)

func charge(context.Context, uint64) error { return nil }

// A program can use the pool that it already has.
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

// One transaction stores the work and ends the lock.
func ExampleBackend_Commit() {
	if err := book(context.Background(), "app:password@tcp(localhost:3306)/app", 7, 5); err != nil {
		log.Print(err)
	}
}

func book(ctx context.Context, dsn string, account, amount int) error {
	db, err := sql.Open("mysql", dsn)
	if err != nil {
		return err
	}
	defer db.Close()
	backend, err := mysqllock.New(ctx, db, &mysqllock.Options{Strategy: mysqllock.ForUpdate, Create: true})
	if err != nil {
		return err
	}
	locks, err := distlock.New(backend, nil)
	if err != nil {
		return err
	}
	defer locks.Close()

	lease, err := locks.Mutex(fmt.Sprint("account:", account)).Lock(ctx)
	if err != nil {
		return err
	}
	defer lease.Unlock(context.WithoutCancel(ctx)) // nil after Commit: the lock has ended
	return backend.Commit(lease.Context(), lease.Owner(), func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "UPDATE accounts SET balance = balance + ? WHERE id = ?", amount, account)
		return err
	})
}
