package fencesql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
)

// attempts bounds how often a transaction is started again because Enter failed.
const attempts = 10

// inside calls do in a transaction that has entered.
func inside(ctx context.Context, db *sql.DB, enter, do func(tx *sql.Tx) error) error {
	tx, err := begin(ctx, db, enter)
	for n := 1; n < attempts && ctx.Err() == nil && conflicts(err); n++ {
		tx, err = begin(ctx, db, enter)
	}
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // no effect after Commit
	if err := do(tx); err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("fencesql: commit: %w", err)
	}
	return nil
}

// begin begins a transaction and enters. On an error it leaves none open.
func begin(ctx context.Context, db *sql.DB, enter func(tx *sql.Tx) error) (*sql.Tx, error) {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return nil, fmt.Errorf("fencesql: %w", err)
	}
	if err := enter(tx); err != nil {
		_ = tx.Rollback()
		return nil, err
	}
	return tx, nil
}

// conflicts reports whether err is a deadlock or a serialization failure: SQLSTATE 40xxx.
// PostgreSQL's drivers report it by a method, and MySQL's in the text.
func conflicts(err error) bool {
	var state interface{ SQLState() string }
	if errors.As(err, &state) {
		return strings.HasPrefix(state.SQLState(), "40")
	}
	return err != nil && strings.Contains(err.Error(), "(40001)")
}
