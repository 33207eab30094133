package sqlitelock

import (
	"context"
	"database/sql"
)

// stmts are the writer's prepared statements. They run to their end, without a
// context: each is short, and nobody waits for the writer longer than for his own
// context.
type stmts struct {
	begin, commit, rollback *sql.Stmt

	look, lock, claim, bury  *sql.Stmt
	renew, floor, release    *sql.Stmt
	sweepEnd, sweepClaims    *sql.Stmt
	sweepNumbers, sweepLocks *sql.Stmt
}

func prepare(ctx context.Context, conn *sql.Conn) (*stmts, error) {
	// Waiting is the writer's, between attempts.
	if _, err := conn.ExecContext(ctx, "PRAGMA busy_timeout=0"); err != nil {
		return nil, err
	}
	s := &stmts{}
	for stmt, text := range map[**sql.Stmt]string{
		&s.begin: "BEGIN IMMEDIATE", &s.commit: "COMMIT", &s.rollback: "ROLLBACK",
		&s.look: sqlLook, &s.lock: sqlLock, &s.claim: sqlClaim, &s.bury: sqlBury,
		&s.renew: sqlRenew, &s.floor: sqlFloor, &s.release: sqlRelease,
		&s.sweepEnd: sqlSweepEnd, &s.sweepClaims: sqlSweepClaims,
		&s.sweepNumbers: sqlSweepNumbers, &s.sweepLocks: sqlSweepLocks,
	} {
		p, err := conn.PrepareContext(ctx, text)
		if err != nil {
			return nil, err
		}
		*stmt = p
	}
	return s, nil
}

func (*stmts) exec(s *sql.Stmt, args ...any) error {
	_, err := s.ExecContext(context.Background(), args...)
	return err
}
