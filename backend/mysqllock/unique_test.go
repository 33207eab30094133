package mysqllock

import (
	"fmt"
	"testing"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/claims"
)

// sweeping is a backend with its strategy, for what only that has.
func sweeping(t *testing.T, url string) (*Backend, *unique) {
	t.Helper()
	b := connect(t, url)
	return b, b.strategy.(*unique)
}

// The sweeper removes what has ended, and nothing else; fences go on over it.
func TestSweeper(t *testing.T) {
	t.Parallel()
	url, db := database(t, UniqueIndex)
	b, u := sweeping(t, url)
	held, dead, young := request("held", long), request("dead", long), request("young", long)
	take(t, b, held)
	first := take(t, b, dead)
	take(t, b, young)
	do(t, db, "UPDATE distlock_unique SET expires = 1 WHERE name = 'dead'",
		"UPDATE distlock_unique SET expires = "+clockSQL+" - 1000000 WHERE name = 'young'")
	if n, err := u.sweep(t.Context(), sweepAge); n != 1 || err != nil {
		t.Errorf("swept %d rows, %v; want 1", n, err)
	}
	if n := ask(t, db, "SELECT COUNT(*) FROM distlock_unique WHERE name = 'dead'"); n != 0 {
		t.Error("the row of a lease that ended is there")
	}
	if err := b.Renew(t.Context(), []driver.Hold{held.Hold})[0]; err != nil {
		t.Errorf("what is held: %v", err)
	}
	if g := take(t, b, request("dead", long)); g.Fence <= first.Last() {
		t.Errorf("fence %d after %d, which was swept", g.Fence, first.Last())
	}
}

// A row that was taken over after the sweeper had seen it stays.
func TestSweeperMeetsTakeOver(t *testing.T) {
	t.Parallel()
	url, db := database(t, UniqueIndex)
	b, u := sweeping(t, url)
	take(t, b, request("x", long))
	do(t, db, "UPDATE distlock_unique SET expires = 1")
	graves, err := u.graves(t.Context(), sweepAge)
	if err != nil || len(graves) != 1 {
		t.Fatalf("%v, %v", graves, err)
	}
	r := request("x", long)
	take(t, b, r)
	g := graves[0]
	if n, err := u.run(t.Context(), u.bury, g.name, g.owner, g.expires); n != 0 || err != nil {
		t.Errorf("buried %d, %v", n, err)
	}
	if err := b.Release(t.Context(), r.Hold); err != nil {
		t.Error(err)
	}
}

// A step of the sweeper is bounded.
func TestSweeperIsBounded(t *testing.T) {
	t.Parallel()
	url, db := database(t, UniqueIndex)
	_, u := sweeping(t, url)
	do(t, db, fmt.Sprintf("INSERT INTO distlock_unique (name, owner, expires) SELECT seq, 'x', 1 FROM seq_1_to_%d", sweepStep+10))
	for _, want := range []int{sweepStep, 10, 0} {
		if n, err := u.sweep(t.Context(), sweepAge); n != want || err != nil {
			t.Errorf("swept %d, %v; want %d", n, err, want)
		}
	}
}

// Who comes for its number when the lock is another's gets none, and takes none from
// the counter: it would be greater than that of the holder.
func TestNumberComesTooLate(t *testing.T) {
	t.Parallel()
	url, db := database(t, UniqueIndex)
	b, u := sweeping(t, url)
	late, holder := request("x", long), request("x", long)
	take(t, b, late)
	do(t, db, "UPDATE distlock_unique SET expires = 1")
	g := take(t, b, holder)
	if n, err := u.number(t.Context(), late); n != 0 || err != nil {
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
	url, db := database(t, UniqueIndex)
	b, _ := sweeping(t, url)
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
	url, db := database(t, UniqueIndex)
	b, _ := sweeping(t, url)
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
