// Stock takes an item from a stock, by reading and writing. The fence refuses the write of a process that was paused for longer
// than its lock lived.
package main

import (
	"cmp"
	"context"
	"database/sql"
	"log"
	"os"
	"os/signal"
	"syscall"

	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/distlock/distlock"
	_ "github.com/distlock/distlock/backend/all" // or the one backend that you use
	"github.com/distlock/distlock/fence/fencesql"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	locks := get(distlock.Open(ctx, cmp.Or(os.Getenv("DISTLOCK_URL"), "redis://localhost:6379?prefix=locks:"), nil))
	defer locks.Close()
	db := get(sql.Open("pgx", cmp.Or(os.Getenv("DATABASE_URL"), "postgres://localhost/shop")))
	defer db.Close()
	guard := get(fencesql.New(fencesql.Postgres, nil)) // its table: guard.Create, once
	err := locks.Mutex("stock:apple").Do(ctx, func(ctx context.Context) error {
		return guard.Do(ctx, db, "stock:apple", distlock.Fence(ctx), func(tx *sql.Tx) (err error) {
			var n int
			if err = tx.QueryRowContext(ctx, "SELECT quantity FROM stock WHERE sku = 'apple'").Scan(&n); err == nil && n > 0 {
				_, err = tx.ExecContext(ctx, "UPDATE stock SET quantity = $1 WHERE sku = 'apple'", n-1)
			}
			return err
		})
	})
	log.Print("sold: ", err == nil, " ", err)
}

func get[T any](result T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return result
}
