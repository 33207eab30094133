package mysqllock

import (
	"testing"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/claims"
)

// uniqueAt opens a URL, and returns the strategy too.
func uniqueAt(t *testing.T, url string) (*Backend, *unique) {
	t.Helper()
	b := connect(t, url)
	return b, b.strategy.(*unique)
}

// An owner that comes for its number when another one holds the lock gets none, and takes none
// from the counter: it would be greater than the holder's.
func TestNumberComesTooLate(t *testing.T) {
	t.Parallel()
	url, db := freshDatabase(t, UniqueIndex)
	b, u := uniqueAt(t, url)
	late, holder := request("x", long), request("x", long)
	take(t, b, late)
	do(t, db, "UPDATE distlock_unique SET expires = 1")
	g := take(t, b, holder)
	if n, err := u.number(t.Context(), late.Hold); n != 0 || err != nil {
		t.Errorf("got number %d, %v", n, err)
	}
	if n := ask(t, db, "SELECT number FROM distlock_unique_fences"); uint64(n)<<claims.SpanBits != g.Fence {
		t.Errorf("the counter is %d, the holder's fence %d", n, g.Fence)
	}
}

// A row without an end, and without an owner that could be renewed, is held; who insists
// may free it by its owner.
func TestRowOfAnotherProgram(t *testing.T) {
	t.Parallel()
	url, db := freshDatabase(t, UniqueIndex)
	b, _ := uniqueAt(t, url)
	do(t, db, "INSERT INTO distlock_unique (name, owner, expires) VALUES ('x', 'cron@db1', NULL), ('y', '', NULL)")
	for _, name := range []string{"x", "y"} {
		held := refused(t, b, request(name, long))
		if held.Retry != 0 || held.Holders[0].Left >= 0 {
			t.Errorf("%+v", held)
		}
	}
	if err := b.Release(t.Context(), driver.Hold{Name: "x", Owner: "cron@db1", Mode: driver.Exclusive}); err != nil {
		t.Error(err)
	}
	take(t, b, request("x", long))
}

// The two tables' rows are locked together by the taking of a number. What waits for them
// is undone as a deadlock's victim, and done again.
func TestDeadlockIsMet(t *testing.T) {
	t.Parallel()
	url, db := freshDatabase(t, UniqueIndex)
	b, _ := uniqueAt(t, url)
	old := request("x", long)
	take(t, b, old)
	if err := b.Release(t.Context(), old.Hold); err != nil {
		t.Fatal(err)
	}
	tx := begin(t, db, "SELECT * FROM distlock_unique_fences WHERE name = 'x' FOR UPDATE")
	if _, err := tx.Exec("INSERT INTO distlock_unique_fences (name, number) VALUES ('a',1),('b',1),('c',1),('d',1),('e',1)"); err != nil {
		t.Fatal(err) // which makes the rival the heavier one, that no server chooses as victim
	}
	r := request("x", long)
	taken := make(chan error, 1)
	go func() {
		_, err := b.Acquire(t.Context(), r)
		taken <- err
	}()
	waiting(t, db, "distlock_unique_fences", 1)
	if _, err := tx.Exec("UPDATE distlock_unique SET since = 0 WHERE name = 'x'"); err != nil {
		t.Fatalf("the rival was the victim: %v", err)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	if err := <-taken; err != nil {
		t.Errorf("the victim: %v", err)
	}
}
