package sqlitelock

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/engine"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
)

// kept reads a name.
func kept(t *testing.T, s *store, name string) engine.Seen {
	t.Helper()
	return must.Get(s.Read(t.Context(), []string{name}))(t)[0]
}

// Two processes change a few names in random ways, and some of their transactions fail. Each change has the answer and the effect
// that Change.Apply says, whatever a process remembers of the names.
func TestChangesAreApplied(t *testing.T) {
	path := lockFile(t)
	a, b := connect(t, path).store, connect(t, path).store
	random := rand.New(rand.NewPCG(1, 2))
	lines := []string{"\nx1", "\nx2", "\nr1", "\nr2", "\nw1"}
	line := func() string { return lines[random.IntN(len(lines))] + " \t;" }
	for name := range 3 { // from here on versions increase by one: different changes have the same
		must.OK(t, a.Swap(t.Context(), []engine.Change{{Name: fmt.Sprint(name), Floor: a.w.clock.micros() + time.Hour.Microseconds()}})[0].Err)
	}
	done := 0
	for range 1000 {
		s := []*store{a, b}[random.IntN(2)]
		name := fmt.Sprint(random.IntN(3))
		is := kept(t, s, name)
		c := engine.Change{Name: name, Version: is.Version, Ahead: engine.Ahead(random.IntN(4)), New: line(), Until: is.Now + random.Int64N(1000), Stamp: is.Void + random.Int64N(3)}
		if c.Ahead != engine.Whole && is.Text != "" && random.IntN(2) == 0 {
			c.Old, c.New = is.Text[:random.IntN(len(is.Text))], ""
		}
		switch random.IntN(8) {
		case 0:
			c.Version--
		case 1:
			c.Before = is.Now + random.Int64N(10)
		case 2:
			c.Void, c.Floor = is.Void+1, is.Version+5
		case 3:
			failed := errors.New("failed")
			expect.Be(t, s.w.do(t.Context(), func(j *job) error {
				_, err := j.swap(c)
				return errors.Join(err, failed)
			}), failed)
			expect.Equal(t, kept(t, s, name).Version, is.Version, "after a transaction that failed")
			continue
		}
		out := s.Swap(t.Context(), []engine.Change{c})[0]
		must.OK(t, out.Err)
		was := engine.Kept{Version: is.Version, Text: is.Text, Void: is.Void}
		want, should := c.Apply(was, out.Seen.Now)
		after := kept(t, s, name)
		want.Version = after.Version // from the clock
		if should {
			done++
			again := c
			again.Floor = after.Version
			want, _ = again.Apply(was, out.Seen.Now)
		}
		if out.Done != should || after.Text != want.Text || after.Void != want.Void || after.Version < is.Version || should != (after.Version > is.Version) {
			t.Fatalf("%+v on %+v: %+v, then %+v, want %v and %+v", c, is, out, after, should, want)
		}
		if out.Other != (should && c.Ahead != engine.Whole && c.Version != is.Version) || (!out.Done || out.Other) && out.Seen.Text != after.Text {
			t.Fatalf("%+v on %+v: %+v", c, is, out)
		}
	}
	if done < 150 {
		t.Errorf("only %d changes were made", done)
	}
}

// A change that misses does not undo those that share its transaction.
func TestAMissInABatch(t *testing.T) {
	s := connect(t, lockFile(t)).store
	var jobs []*job
	outs := make([]engine.Outcome, 3)
	for i := range outs {
		c := claimOf(fmt.Sprint("x", i))
		c.Version = int64(i % 2) // nothing is there
		jobs = append(jobs, s.w.newJob(t.Context(), func(j *job) (err error) { outs[i], err = j.swap(c); return err }))
	}
	s.w.turn <- struct{}{}
	must.OK(t, s.w.attempt(jobs))
	<-s.w.turn
	for i, j := range jobs {
		must.OK(t, <-j.done)
		expect.Equal(t, outs[i].Done, i%2 == 0, i)
		expect.Equal(t, kept(t, s, fmt.Sprint("x", i)).Version > 0, i%2 == 0, i)
	}
}

// What a row would refuse as too late is refused when it was swept.
func TestALateChangeOfASweptName(t *testing.T) {
	s := connect(t, lockFile(t)).store
	swap := func(c engine.Change) engine.Outcome {
		t.Helper()
		out := s.Swap(t.Context(), []engine.Change{c})[0]
		must.OK(t, out.Err)
		return out
	}
	late := claimOf("x")
	late.Stamp = s.w.clock.micros()
	expect.Equal(t, swap(engine.Change{Name: "x", Void: late.Stamp}).Done, true, "a release that finds nothing")
	expect.Equal(t, swap(late).Done, false, "a late change")
	last := kept(t, s, "x")
	must.OK(t, s.w.do(t.Context(), func(*job) error {
		return new(sweeper).step(&s.w.stmts, last.Version, s.w.clock.micros())
	}))
	seen := kept(t, s, "x")
	expect.Equal(t, seen.Version, 0, "a row is left")
	out := swap(late)
	expect.Equal(t, out.Done, false, "a late change of a name that was swept")
	late.Stamp = out.Seen.Void + 1
	if out = swap(late); !out.Done || out.Seen.Version <= last.Version {
		t.Errorf("a new change: %+v after version %d", out, last.Version)
	}
}

// A thousand renewals are few transactions.
func TestTransactionsOfRenewals(t *testing.T) {
	b := connect(t, lockFile(t))
	var holds []driver.Hold
	for i := range 1000 {
		r := request(fmt.Sprint("x", i), driver.Exclusive, long)
		take(t, b, r)
		holds = append(holds, r.Hold)
	}
	commits := func() (n int) {
		must.OK(t, b.store.w.do(t.Context(), func(*job) error { n = b.store.w.commits; return nil }))
		return n
	}
	b.store.w.turn <- struct{}{}
	b.store.w.commits = 0
	<-b.store.w.turn
	before := commits()
	must.OK(t, errors.Join(b.Renew(t.Context(), holds)...))
	if n := commits() - before - 1; n > 4 {
		t.Errorf("%d transactions", n)
	}
}

// A change that is made wakes whom it names, and who has no place if it frees the lock.
func TestWhoIsWoken(t *testing.T) {
	s := connect(t, lockFile(t)).store
	var keys []string
	for _, c := range []engine.Change{
		{Name: "x", New: "\nx", Frees: false},
		{Name: "x", Ahead: engine.Anything, New: "\ny", Frees: true, Wake: []engine.Wake{{Name: "x", Owner: "waiter"}}},
		{Name: "x", Ahead: engine.Nothing, Old: "\ny", Frees: true},
	} {
		must.OK(t, s.w.do(t.Context(), func(j *job) error {
			_, err := j.swap(c)
			keys = append(keys, j.wake...)
			return err
		}))
	}
	expect.Equal(t, slices.Equal(keys, []string{placeKey("x", "waiter"), "x"}), true, keys)
}

// A process that takes a lock that is free, and releases it, opens one connection.
func TestOneConnectionForACommand(t *testing.T) {
	b := connect(t, lockFile(t))
	r := request("x", driver.Exclusive, long)
	take(t, b, r)
	must.OK(t, errors.Join(b.Renew(t.Context(), []driver.Hold{r.Hold})...))
	free(t, b, r)
	expect.Equal(t, b.store.db.Stats().OpenConnections, 1)
}
