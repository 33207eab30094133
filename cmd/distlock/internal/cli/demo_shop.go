package cli

import (
	"context"
	"database/sql"
	"errors"
	"net/url"
	"time"

	_ "modernc.org/sqlite" // the driver "sqlite" of database/sql

	"github.com/distlock/distlock"
)

// shop is a SQLite file with one kind of item and a row for each sale.
type shop struct{ db *sql.DB }

func openShop(ctx context.Context, path string) (*shop, error) {
	q := url.Values{
		"_txlock": {"immediate"},
		"_pragma": {"busy_timeout(20000)", "journal_mode(wal)", "synchronous(off)"},
	}
	db, err := sql.Open("sqlite", "file:"+(&url.URL{Path: path}).EscapedPath()+"?"+q.Encode())
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1)
	if err := db.PingContext(ctx); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return &shop{db}, nil
}

func (s *shop) close() error { return s.db.Close() }

// fill opens the shop with so many items.
func (s *shop) fill(ctx context.Context, stock int) error {
	_, err := s.db.ExecContext(ctx, `
		CREATE TABLE item (stock INTEGER NOT NULL);
		CREATE TABLE sale (number INTEGER PRIMARY KEY AUTOINCREMENT, fence INTEGER NOT NULL)`)
	if err == nil {
		_, err = s.db.ExecContext(ctx, `INSERT INTO item (stock) VALUES (?)`, stock)
	}
	return err
}

// buy is what goes wrong without a lock: it reads the stock, thinks, and writes back
// one less, whatever others wrote meanwhile. It reports false if nothing was left.
func (s *shop) buy(ctx context.Context, think time.Duration) (bool, error) {
	var stock int
	if err := s.db.QueryRowContext(ctx, `SELECT stock FROM item`).Scan(&stock); err != nil || stock == 0 {
		return false, err
	}
	time.Sleep(think)
	return true, s.sell(ctx, stock-1, distlock.Fence(ctx))
}

// sell writes the new stock and the sale.
func (s *shop) sell(ctx context.Context, stock int, fence uint64) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() // does nothing after Commit
	if _, err := tx.ExecContext(ctx, `UPDATE item SET stock = ?`, stock); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, `INSERT INTO sale (fence) VALUES (?)`, int64(fence)); err != nil {
		return err
	}
	return tx.Commit()
}

// fences are the fences of all sales, in the order of the sales.
func (s *shop) fences(ctx context.Context) ([]uint64, error) {
	rows, err := s.db.QueryContext(ctx, `SELECT fence FROM sale ORDER BY number`)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var fences []uint64
	for rows.Next() {
		var f int64
		if err := rows.Scan(&f); err != nil {
			return nil, err
		}
		fences = append(fences, uint64(f))
	}
	return fences, rows.Err()
}
