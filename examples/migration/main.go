// Migration is what each process does when it starts: one changes the schema, in whose database the lock is; the others wait.
package main

import (
	"cmp"
	"context"
	"database/sql"
	"log"
	"net/url"
	"os"
	"os/signal"
	"syscall"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/distlock/distlock"
	_ "github.com/distlock/distlock/backend/pglock"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	database := cmp.Or(os.Getenv("DATABASE_URL"), "postgres://localhost/shop?sslmode=disable")
	where, err := url.Parse(database)
	if err != nil {
		log.Fatal("DATABASE_URL is not a URL") // the error would show its password
	}
	q := where.Query()
	q.Set("create", "true")
	where.RawQuery = q.Encode()
	locks, err := distlock.Open(ctx, where.String(), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close()
	db, err := sql.Open("pgx", database)
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	migrations := locks.Mutex("migrations", distlock.WaitAtMost(10*time.Minute))
	err = migrations.Do(ctx, func(ctx context.Context) error { // here: goose, golang-migrate, your own
		_, err := db.ExecContext(ctx, "CREATE TABLE IF NOT EXISTS stock (sku TEXT PRIMARY KEY, quantity INT NOT NULL)")
		return err
	})
	if err != nil {
		log.Fatal("not migrated: ", err)
	}
	log.Print("migrated")
}
