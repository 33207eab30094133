package pglock

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// poolerPatience bounds the search for a pooler. Who has no connection to spare for that
// long is treated as one that gives each transaction another.
const poolerPatience = 3 * time.Second

// pooled finds out whether a pooler gives each transaction another connection to the
// server. Two clients tell: one inside a transaction, which must have a connection of
// its own, and one outside, which must have the same as before.
func pooled(ctx context.Context, config *pgx.ConnConfig) (bool, error) {
	bounded, cancel := context.WithTimeout(ctx, poolerPatience)
	defer cancel()
	is, err := shared(bounded, &config.Config)
	if err != nil && ctx.Err() == nil && bounded.Err() != nil {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("looking for a pooler: %w", explain(err))
	}
	return is, nil
}

func shared(ctx context.Context, config *pgconn.Config) (bool, error) {
	idle, err := pgconn.ConnectConfig(ctx, config)
	if err != nil {
		return false, err
	}
	defer idle.Close(ctx)
	busy, err := pgconn.ConnectConfig(ctx, config)
	if err != nil {
		return false, err
	}
	defer busy.Close(ctx)

	first, err := process(ctx, idle, "")
	if err != nil {
		return false, err
	}
	other, err := process(ctx, busy, "BEGIN;")
	if err != nil || other == first {
		return true, err
	}
	// With several connections the next of them is due, or the one before again.
	for _, also := range []struct {
		conn    *pgconn.PgConn
		prelude string
		want    uint32
	}{{idle, "", first}, {busy, "ROLLBACK;", other}, {idle, "", first}, {idle, "", first}} {
		pid, err := process(ctx, also.conn, also.prelude)
		if err != nil || pid != also.want {
			return true, err
		}
	}
	return false, nil
}

// process is the server's process that answers a connection.
func process(ctx context.Context, conn *pgconn.PgConn, prelude string) (uint32, error) {
	results, err := conn.Exec(ctx, prelude+"SELECT pg_backend_pid()").ReadAll()
	if err != nil {
		return 0, err
	}
	rows := results[len(results)-1].Rows
	pid, err := strconv.ParseUint(string(rows[0][0]), 10, 32)
	return uint32(pid), err
}
