// Stock takes an item from a stock. A fence refuses the write of a process that was paused for longer than its lock lived.
package main

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"log"
	"os"
	"os/signal"
	"syscall"

	"github.com/distlock/distlock"
	_ "github.com/distlock/distlock/backend/all" // or the one backend that you use
	"github.com/distlock/distlock/fence/fencesql"
	_ "github.com/jackc/pgx/v5/stdlib"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	locks, err := distlock.Open(ctx, cmp.Or(os.Getenv("DISTLOCK_URL"), "redis://localhost:6379?prefix=locks:"), nil)
	db, err2 := sql.Open("pgx", cmp.Or(os.Getenv("DATABASE_URL"), "postgres://localhost/shop"))
	guard, err3 := fencesql.New(fencesql.Postgres, nil) // its table: guard.Create, once
	if err := errors.Join(err, err2, err3); err != nil {
		log.Fatal(err)
	}
	defer locks.Close()
	err = locks.Mutex("stock:apple").Do(ctx, func(ctx context.Context) error {
		return guard.Do(ctx, db, "stock:apple", distlock.Fence(ctx), func(tx *sql.Tx) error {
			var n int
			if err := tx.QueryRowContext(ctx, "SELECT quantity FROM stock WHERE sku = 'apple'").Scan(&n); err != nil || n == 0 {
				return cmp.Or(err, errors.New("sold out"))
			}
			_, err := tx.ExecContext(ctx, "UPDATE stock SET quantity = $1 WHERE sku = 'apple'", n-1)
			return err
		})
	})
	if err != nil {
		log.Fatal(err)
	}
	log.Print("done")
}
