package occsql_test

import (
	"context"
	"database/sql"
	"errors"

	"github.com/distlock/distlock/occ"
	"github.com/distlock/distlock/occ/occsql"
)

var db *sql.DB // of your program

var errSoldOut = errors.New("sold out")

// Column updates a single value.
func ExampleColumn_Update() {
	stock, err := occsql.NewColumn[int](occsql.MySQL, occsql.Names{
		Table: "stock", Key: "sku", Value: "quantity", Version: "version",
	})
	if err != nil {
		return
	}
	_, _ = stock.Update(context.Background(), db, "apple", func(n int) (int, error) {
		if n == 0 {
			return 0, errSoldOut
		}
		return n - 1, nil
	})
}

type account struct {
	balance, credit int
	version         int64
}

// Stored works with your own statements, over as many columns as the decision needs.
func ExampleStored() {
	load := func(ctx context.Context) (a account, err error) {
		err = db.QueryRowContext(ctx, `SELECT balance, credit, version FROM accounts WHERE id = ?`, 7).
			Scan(&a.balance, &a.credit, &a.version)
		return a, err
	}
	withdraw := func(_ context.Context, a account) (account, error) {
		a.balance -= 100
		if a.balance < -a.credit {
			return a, errors.New("not enough money")
		}
		return a, nil
	}
	store := func(ctx context.Context, old, new account) (bool, error) {
		return occsql.Stored(db.ExecContext(ctx,
			`UPDATE accounts SET balance = ?, version = version + 1 WHERE id = ? AND version = ?`,
			new.balance, 7, old.version))
	}
	_, _ = occ.Update(context.Background(), load, withdraw, store)
}

// A request that is sent again, since its answer was lost, is executed once: the key that its sender
// chose is unique.
func Example_idempotencyKey() {
	pay := func(ctx context.Context, requestID string, amount int) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback()
		first, err := tx.ExecContext(ctx, "INSERT INTO requests (id) VALUES ($1) ON CONFLICT DO NOTHING", requestID)
		if err != nil {
			return err
		}
		if n, err := first.RowsAffected(); err != nil || n == 0 {
			return err // already done
		}
		if _, err := tx.ExecContext(ctx, "INSERT INTO payments (request, amount) VALUES ($1, $2)", requestID, amount); err != nil {
			return err
		}
		return tx.Commit()
	}
	_ = pay
}
