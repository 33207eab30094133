package sqlitelock

import (
	"context"
	"database/sql"
	"errors"
)

// stmts are the writer's prepared statements. They run to their end, without a
// context: each is short, and nobody waits for the writer longer than for his own
// context.
type stmts struct {
	begin, commit, rollback *sql.Stmt

	look, lock, claim, bury  *sql.Stmt
	renew, shorten           *sql.Stmt
	floor, release           *sql.Stmt
	sweepEnd, sweepClaims    *sql.Stmt
	sweepNumbers, sweepLocks *sql.Stmt

	all []*sql.Stmt
}

func (s *stmts) prepare(ctx context.Context, conn *sql.Conn) error {
	for stmt, text := range map[**sql.Stmt]string{
		&s.begin: "BEGIN IMMEDIATE", &s.commit: "COMMIT", &s.rollback: "ROLLBACK",
		&s.look: sqlLook, &s.lock: sqlLock, &s.claim: sqlClaim, &s.bury: sqlBury,
		&s.renew: sqlRenew, &s.shorten: sqlShorten, &s.floor: sqlFloor, &s.release: sqlRelease,
		&s.sweepEnd: sqlSweepEnd, &s.sweepClaims: sqlSweepClaims,
		&s.sweepNumbers: sqlSweepNumbers, &s.sweepLocks: sqlSweepLocks,
	} {
		p, err := conn.PrepareContext(ctx, text)
		if err != nil {
			return err
		}
		*stmt, s.all = p, append(s.all, p)
	}
	return nil
}

// close is needed before the connection is closed: otherwise SQLite keeps the file
// open, and the WAL beside it.
func (s *stmts) close() error {
	var errs []error
	for _, stmt := range s.all {
		errs = append(errs, stmt.Close())
	}
	return errors.Join(errs...)
}

func (*stmts) exec(s *sql.Stmt, args ...any) error {
	_, err := s.ExecContext(context.Background(), args...)
	return err
}
