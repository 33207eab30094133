package etcdlock

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/locktest"
)

// Dead places cost one turn for each client, and those that would enter together one turn together.
func TestTurnsOfDeadPlaces(t *testing.T) {
	one, two, three := driver.NewOwners(), driver.NewOwners(), driver.NewOwners()
	place := func(mode driver.Mode, client driver.Owners) lockKey {
		k := lockKey{mode: mode, owner: client.New()}
		k.key, k.Later, k.Limit = k.owner, true, 2
		return k
	}
	const x, r, p = driver.Exclusive, driver.Read, driver.Counted
	for name, c := range map[string]struct {
		queue lockQueue
		turns []int // places that are over after each
	}{
		"mutexes of three clients": {lockQueue{place(x, one), place(x, two), place(x, three)}, []int{1, 1, 1}},
		"mutexes of one client":    {lockQueue{place(x, one), place(x, two), place(x, one), place(x, one)}, []int{3, 1}},
		"readers":                  {lockQueue{place(r, one), place(r, two), place(r, three), place(x, two)}, []int{4}},
		"two permits of three":     {lockQueue{place(p, one), place(p, two), place(p, three)}, []int{2, 1}},
		"a writer behind readers":  {lockQueue{place(r, one), place(driver.Write, two), place(r, three)}, []int{1, 1, 1}},
		"behind a holder":          {lockQueue{{mode: x, owner: "x"}, place(x, one)}, nil},
	} {
		synctest.Test(t, func(t *testing.T) {
			var s turns
			_, q, left := s.over(c.queue)
			for i, n := range c.turns {
				expect.Equal(t, left, driver.TurnLife, fmt.Sprintf("%s: turn %d", name, i))
				time.Sleep(driver.TurnLife - 1)
				gone, _, _ := s.over(q)
				expect.Equal(t, len(gone), 0, fmt.Sprintf("%s: turn %d, a nanosecond too early", name, i))
				time.Sleep(time.Nanosecond)
				gone, q, _ = s.over(q)
				expect.Equal(t, len(gone), n, fmt.Sprintf("%s: turn %d", name, i))
				_, q, left = s.over(q) // as soon as they are deleted
			}
			expect.Equal(t, left, 0, name+": nobody's turn")
		})
	}
}

// One who waits asks again just when the turn of a dead place is over, and deletes it then.
func TestRefusalSaysWhenATurnEnds(t *testing.T) {
	t.Parallel()
	b := shared(t)
	holder := request("", driver.Exclusive)
	acquire(t, b, holder)
	waiter := func() driver.Request { return queued(request(holder.Name, driver.Exclusive)) }
	dead, dead2, live := waiter(), waiter(), waiter()
	for _, r := range []driver.Request{dead, dead2, live} {
		locktest.Held(t, b, r)
	}
	locktest.Release(t, b, holder)
	for places := 3; places > 1; {
		refused := locktest.Held(t, b, live)
		if n := len(storedKeys(t, b, holder.Name)); n < places {
			places = n
			continue
		}
		if refused.Retry <= 0 || refused.Retry > driver.TurnLife {
			t.Fatalf("refused for %v", refused.Retry)
		}
		time.Sleep(refused.Retry)
	}
	acquire(t, b, live)
}
