package sqlwrites_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/fence"
	"github.com/distlock/distlock/fence/fencesql"
)

// shop opens a database with a stock table. The examples run on SQLite. Other databases need another
// driver and dialect, and PostgreSQL needs $1 for ?.
func shop(ctx context.Context) (db *sql.DB, cleanUp func(), err error) {
	dir, err := os.MkdirTemp("", "shop")
	if err != nil {
		return nil, nil, err
	}
	db, err = sql.Open("sqlite", "file:"+filepath.Join(dir, "shop.db")+"?_pragma=busy_timeout(5000)")
	if err != nil {
		return nil, nil, err
	}
	_, err = db.ExecContext(ctx, `CREATE TABLE stock (sku TEXT PRIMARY KEY, quantity INT, fence BIGINT NOT NULL DEFAULT 0);
		INSERT INTO stock VALUES ('7', 100, 0)`)
	return db, func() { db.Close(); os.RemoveAll(dir) }, err
}

// Present the fence before the first read. Everything after that is one step.
func Example() {
	ctx := context.Background()
	db, cleanUp, err := shop(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer cleanUp()
	guard, err := fencesql.New(fencesql.SQLite, nil)
	if err == nil {
		err = guard.Create(ctx, db) // or in a migration: guard.Schema()
	}
	if err != nil {
		fmt.Println(err)
		return
	}
	locks, err := distlock.New(memlock.New(), nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer locks.Close()

	err = locks.Mutex("stock:7").Do(ctx, func(ctx context.Context) error {
		return guard.Do(ctx, db, "stock:7", distlock.Fence(ctx), func(tx *sql.Tx) error {
			var quantity int
			if err := tx.QueryRowContext(ctx, `SELECT quantity FROM stock WHERE sku = ?`, "7").Scan(&quantity); err != nil {
				return err
			}
			_, err := tx.ExecContext(ctx, `UPDATE stock SET quantity = ? WHERE sku = ?`, quantity-1, "7")
			return err
		})
	})
	fmt.Println(err)
	// Output: <nil>
}

// In your own transaction, call Enter first.
func ExampleGuard_Enter() {
	ctx := context.Background()
	db, cleanUp, err := shop(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer cleanUp()
	guard, err := fencesql.New(fencesql.SQLite, nil)
	if err == nil {
		err = guard.Create(ctx, db)
	}
	if err != nil {
		fmt.Println(err)
		return
	}
	sell := func(f uint64, n int) error { // f is distlock.Fence(ctx)
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback()
		if err := guard.Enter(ctx, tx, "stock:7", f); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, `UPDATE stock SET quantity = quantity - ? WHERE sku = ?`, n, "7"); err != nil {
			return err
		}
		return tx.Commit()
	}
	fmt.Println(sell(34, 10))
	fmt.Println(sell(33, 1)) // a holder that was paused
	// Output:
	// <nil>
	// fencesql: stale fence: 33 for "stock:7" after 34; another client has held the lock since
}

// The row contains its fence. A read needs a transaction, since it presents the fence. A write needs
// one statement.
func ExampleColumn() {
	ctx := context.Background()
	db, cleanUp, err := shop(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer cleanUp()
	column, err := fencesql.NewColumn(fencesql.SQLite, fencesql.Names{Table: "stock", Key: "sku", Fence: "fence"})
	if err != nil {
		fmt.Println(err)
		return
	}
	read := func(f uint64) (quantity int, err error) {
		err = column.Do(ctx, db, "7", f, func(tx *sql.Tx) error {
			return tx.QueryRowContext(ctx, `SELECT quantity FROM stock WHERE sku = ?`, "7").Scan(&quantity)
		})
		return quantity, err
	}
	write := func(quantity int, f uint64) error {
		result, err := db.ExecContext(ctx, `UPDATE stock SET quantity = ?, fence = ? WHERE sku = ? AND fence <= ?`, quantity, f, "7", f)
		if err != nil {
			return err
		}
		return column.Changed(ctx, db, result, "7", f)
	}

	old, _ := read(33)
	// … the holder is paused here for longer than its lease, and another takes the lock …
	quantity, _ := read(34)
	fmt.Println(errors.Is(write(old-1, 33), fence.ErrStale)) // refused before 34 writes
	fmt.Println(write(quantity-10, 34))
	fmt.Println(read(34))
	// Output:
	// true
	// <nil>
	// 90 <nil>
}
