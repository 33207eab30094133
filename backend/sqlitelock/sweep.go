package sqlitelock

import (
	"context"
	"database/sql"
	"time"
)

// Rows of names that nobody has used for a while are removed, so that a program
// that locks "order:1", "order:2" and so on has a file of a bounded size. What they
// remembered is kept for all names at once: meta.swept is at least their numbers,
// and every new row starts above it.
const (
	sqlSweepEnd = `SELECT max(name) FROM (SELECT name FROM locks WHERE name > ? ORDER BY name LIMIT ?)`

	sqlSweepClaims = `DELETE FROM claims WHERE name > ? AND name <= ? AND until <= ?`

	sqlSweepNumbers = `UPDATE meta SET swept = max(swept, ?)`

	sqlSweepLocks = `
DELETE FROM locks WHERE name > ? AND name <= ? AND number <= ?
AND NOT EXISTS (SELECT 1 FROM claims WHERE claims.name = locks.name)`
)

// The pace: two rows are looked at for each row added, in steps.
const (
	sweepEvery = 128
	sweepStep  = 2 * sweepEvery
	sweepIdle  = time.Minute
)

// sweeper goes round the names.
type sweeper struct {
	idle   time.Duration // how long a name is unused before its row goes
	credit int           // rows added since the last step
	after  string        // where the next step begins
}

// tidy makes a step when it is due. A step that fails is made another time.
func (w *writer) tidy() {
	if w.sweep.credit < sweepEvery {
		return
	}
	w.sweep.credit = 0
	run := func(t *tx) error { return t.sweepRows(&w.sweep, wallMicros()-w.sweep.idle.Microseconds()) }
	_ = w.transact([]*job{{run: run, done: make(chan error, 1)}})
}

// sweepRows looks at the next rows and removes those whose last grant had a number
// up to limit.
func (t *tx) sweepRows(s *sweeper, limit int64) error {
	var end sql.NullString
	if err := t.sweepEnd.QueryRowContext(context.Background(), s.after, sweepStep).Scan(&end); err != nil {
		return err
	}
	after := s.after
	s.after = end.String
	if !end.Valid {
		return nil
	}
	if err := t.exec(t.sweepClaims, after, end, t.clock.now()); err != nil {
		return err
	}
	if err := t.exec(t.sweepNumbers, limit); err != nil {
		return err
	}
	return t.exec(t.sweepLocks, after, end, limit)
}
