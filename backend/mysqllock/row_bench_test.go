package mysqllock

import (
	"database/sql"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// BenchmarkRowPair acquires and releases locks, one for each goroutine, and compares that with the two
// statements that any lock in a row needs. The parts alternate in one run.
//
//	go test -run=- -bench=RowPair -benchtime=2s -count=5 ./backend/mysqllock
func BenchmarkRowPair(b *testing.B) {
	u := testserver.SharedMariaDB(b).Database(b)
	for _, goroutines := range []int{1, 16} {
		b.Run(fmt.Sprintf("plain/%d", goroutines), func(b *testing.B) { pairs(b, goroutines, plainPair(b, u)) })
		b.Run(fmt.Sprintf("distlock/%d", goroutines), func(b *testing.B) {
			backend := rowOn(b, benchPool(b, u))
			pairs(b, goroutines, func(name string) error {
				r := asks(name, driver.Exclusive)
				if _, err := backend.Acquire(b.Context(), r); err != nil {
					return err
				}
				return backend.Release(b.Context(), r.Hold)
			})
		})
	}
}

func benchPool(b *testing.B, u string) *sql.DB {
	db := rowPool(b, u, nil)
	db.SetMaxIdleConns(32)
	return db
}

// plainPair acquires and releases a lock in a row with textbook statements.
func plainPair(b *testing.B, u string) func(name string) error {
	db := benchPool(b, u)
	do(b, db, "CREATE TABLE IF NOT EXISTS plain (name VARBINARY(64) PRIMARY KEY, owner VARBINARY(64), token BIGINT, expires DATETIME(6))")
	for i := range 16 {
		do(b, db, fmt.Sprintf("INSERT IGNORE INTO plain VALUES ('bench %d', NULL, 0, NOW(6))", i))
	}
	take := prepared(b, db, "UPDATE plain SET owner = ?, token = LAST_INSERT_ID(token + 1), expires = UTC_TIMESTAMP(6) + INTERVAL 60 SECOND WHERE name = ? AND (owner IS NULL OR expires < UTC_TIMESTAMP(6))")
	free := prepared(b, db, "UPDATE plain SET owner = NULL WHERE name = ? AND owner = ?")
	return func(name string) error {
		owner := driver.NewOwner()
		if _, err := take.ExecContext(b.Context(), owner, name); err != nil {
			return err
		}
		_, err := free.ExecContext(b.Context(), name, owner)
		return err
	}
}

func prepared(b *testing.B, db *sql.DB, text string) *sql.Stmt {
	b.Helper()
	stmt := must.Get(db.PrepareContext(b.Context(), text))(b)
	return stmt
}

// pairs divides b.N pairs among goroutines.
func pairs(b *testing.B, goroutines int, pair func(name string) error) {
	var wg sync.WaitGroup
	var left atomic.Int64
	left.Store(int64(b.N))
	for i := range goroutines {
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				if err := pair(fmt.Sprint("bench ", i)); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "pairs/s")
}
