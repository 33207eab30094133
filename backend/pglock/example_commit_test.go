package pglock_test

import (
	"context"
	"database/sql"
	"log"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/backend/pglock"
)

// Work in the same database runs on the lock's connection. It is stored if, and only if, the lock was
// held to the end.
func ExampleBackend_Commit() {
	if err := pay(context.Background(), "postgres://app:secret@db1:5432/app"); err != nil {
		log.Print(err)
	}
}

func pay(ctx context.Context, url string) error {
	db, err := sql.Open("pgx", url)
	if err != nil {
		return err
	}
	defer db.Close()
	backend, err := pglock.New(ctx, db, &pglock.Options{Strategy: pglock.Advisory})
	if err != nil {
		return err
	}
	locks, err := distlock.New(backend, nil)
	if err != nil {
		return err
	}
	defer locks.Close()

	lease, err := locks.Mutex("account:7").Lock(ctx)
	if err != nil {
		return err
	}
	defer lease.Unlock(context.WithoutCancel(ctx)) // the lock is held until then
	return backend.Commit(ctx, lease.Owner(), func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "UPDATE accounts SET balance = balance - 10 WHERE id = 7")
		return err
	})
}
