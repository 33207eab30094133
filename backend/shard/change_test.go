package shard_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/backend/shard"
	"github.com/distlock/distlock/driver"
)

// A process with another list is refused until the one with the old list has closed.
func TestAnotherListIsRefused(t *testing.T) {
	for _, other := range []string{"a b c d", "a b", "b c", "c d", "c"} {
		synctest.Test(t, func(t *testing.T) {
			c := newCluster(t, "a", "b", "c", "d")
			one, two := c.process("a b c"), c.process("c b a")
			c.refused(other, "a,b,c")
			one.Close()
			time.Sleep(10 * time.Minute)
			c.refused(other, "a,b,c")
			two.Close()
			c.process(other)
			c.refused("a b c", strings.ReplaceAll(other, " ", ","))
		})
	}
}

// A process that dies without Close keeps other lists out for Options.Record.
func TestDeadProcessKeepsOthersOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, "a", "b", "c")
		dead := c.process("a b")
		time.Sleep(time.Hour)
		for _, w := range dead.wires {
			w.set(true, false)
		}
		dead.Close()
		time.Sleep(45 * time.Second)
		c.refused("a b c", "a,b")
		time.Sleep(16 * time.Second)
		c.process("a b c")
	})
}

// A registration outlives the locks, also after Close.
func TestLocksAfterCloseKeepOthersOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, "a", "b", "c")
		one := c.process("a b")
		r := request("lock")
		r.TTL, r.Fixed = time.Hour, true
		take(t, one, r)
		one.Close()
		time.Sleep(time.Hour - time.Second)
		c.refused("a b c", "a,b")
		time.Sleep(2*time.Hour + time.Second)
		c.process("a b c")
	})
}

// A rolling change of the list: each new process is compatible with the running ones, and one
// process has the lock at each moment.
func TestChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, "a", "b", "c", "d")
		lists := []string{"a b c", "a b -c +d", "a b d"}
		var last uint64
		moved := 0
		var before *process
		for step, list := range lists {
			p := c.process(list)
			for i := range 200 {
				r := request(fmt.Sprint("lock", i))
				g := take(t, p, r)
				last = max(last, g.Fence)
				if before != nil {
					if _, err := before.Acquire(t.Context(), request(r.Name)); !errors.Is(err, driver.ErrHeld) {
						t.Fatalf("step %d: %s is held by %s, and %s got it: %v", step, r.Name, list, lists[step-1], err)
					}
				}
				if err := errors.Join(p.Renew(t.Context(), []driver.Hold{r.Hold})...); err != nil {
					t.Fatal(err)
				}
				if err := p.Release(t.Context(), r.Hold); err != nil {
					t.Fatal(err)
				}
				if before == nil {
					continue
				}
				g2 := take(t, before, r2(r.Name))
				if g2.Fence <= g.Fence {
					t.Errorf("step %d: fence %d, and then %d", step, g.Fence, g2.Fence)
				}
				if _, err := p.Acquire(t.Context(), request(r.Name)); !errors.Is(err, driver.ErrHeld) {
					t.Fatalf("step %d: %s is held with the list before: %v", step, r.Name, err)
				} else {
					moved++
				}
				if err := before.Release(t.Context(), r2(r.Name).Hold); err != nil {
					t.Fatal(err)
				}
			}
			if step == 2 {
				c.refused("a b c", "a,b,d")
			}
			if before != nil {
				before.Close()
			}
			before = p
		}
		c.refused("a b c", "a,b,d")
		if moved != 400 {
			t.Errorf("%d checks", moved)
		}
	})
}

// r2 returns a request whose Owner follows from the name.
func r2(name string) driver.Request {
	r := request(name)
	r.Owner = fmt.Sprintf("00000000-0000-4000-8000-%012x", len(name))
	return r
}

// A process with only the new list holds at the new member alone. A process with both lists is
// refused there, and releases what it has taken at the old member.
func TestARefusalAtTheNewMemberLeavesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, "a", "b")
		both, now := c.process("-a +b"), c.process("b")
		take(t, now, request("lock"))
		if _, err := both.Acquire(t.Context(), request("lock")); !errors.Is(err, driver.ErrHeld) {
			t.Fatal(err)
		}
		if info, err := c.stores["a"].Connect().Inspect(t.Context(), "lock"); err != nil || len(info.Holders) > 0 {
			t.Errorf("left at the old member: %+v, %v", info.Holders, err)
		}
	})
}

// A lock that is lost at one of its two members is lost, and released at the other.
func TestHalfALockIsLost(t *testing.T) {
	for what, call := range map[string]func(context.Context, driver.Backend, driver.Hold) error{
		"renew": func(ctx context.Context, b driver.Backend, h driver.Hold) error {
			return b.Renew(ctx, []driver.Hold{h})[0]
		},
		"release": func(ctx context.Context, b driver.Backend, h driver.Hold) error { return b.Release(ctx, h) },
	} {
		synctest.Test(t, func(t *testing.T) {
			c := newCluster(t, "a", "b")
			both := c.process("-a +b")
			r := request("lock")
			take(t, both, r)
			if err := c.stores["b"].Connect().Release(t.Context(), r.Hold); err != nil {
				t.Fatal(err)
			}
			if err := call(t.Context(), both, r.Hold); !errors.Is(err, driver.ErrLost) {
				t.Errorf("%s: %v", what, err)
			}
			synctest.Wait()
			take(t, both, request("lock"))
		})
	}
}

// Two lists that differ by one member exclude each other, with any member down for each.
func TestRefusedWithAMemberDown(t *testing.T) {
	for _, down := range []string{"a", "b", "c"} {
		synctest.Test(t, func(t *testing.T) {
			c := newCluster(t, "a", "b", "c", "d")
			one := c.process("a b c")
			one.wires[down].set(true, false)
			time.Sleep(5 * time.Minute)
			for _, alsoDown := range []string{"", "a", "b", "c", "d"} {
				if p, err := c.openCut("a b c d", alsoDown); !errors.Is(err, driver.ErrInvalid) {
					p.Close()
					t.Fatalf("%s is down for one, %q for the other, which was let in: %v", down, alsoDown, err)
				}
			}
		})
	}
}

// A member that loses its memory gets its registrations back.
func TestAMemberForgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, "a", "b", "c")
		p := c.process("a b c")
		p.wires["a"].replace(memlock.NewStore())
		time.Sleep(time.Minute)
		info, err := p.wires["a"].Inspect(t.Context(), "distlock:shard:")
		if err != nil || len(info.Holders) != 1 || info.Holders[0].Meta["lists"] != "a,b,c" {
			t.Errorf("%+v, %v", info, err)
		}
	})
}

// The hold of a process that has only one of the lists is at one member, and is released there.
func TestHalfALockOfAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, "a", "b")
		both := c.process("-a +b")
		r := request("lock")
		take(t, c.stores["a"].Connect(), r)
		if err := both.Release(t.Context(), r.Hold); err != nil {
			t.Error(err)
		}
		take(t, both, request("lock"))
	})
}

// A renewal of such a hold leaves it to its process, which renews it on.
func TestRenewalOfHalfALockOfAnother(t *testing.T) {
	for _, at := range []string{"a", "b"} {
		synctest.Test(t, func(t *testing.T) {
			c := newCluster(t, "a", "b")
			both, member := c.process("-a +b"), c.stores[at].Connect()
			r := request("lock")
			take(t, member, r)
			for range 2 {
				if err := both.Renew(t.Context(), []driver.Hold{r.Hold})[0]; !errors.Is(err, driver.ErrLost) {
					t.Errorf("a renewal with both lists: %v", err)
				}
				synctest.Wait()
			}
			if err := member.Renew(t.Context(), []driver.Hold{r.Hold})[0]; err != nil {
				t.Errorf("a renewal at its member %s: %v", at, err)
			}
		})
	}
}

// A hold that another process has taken at both members, and of which a renewal found both halves, is lost with one of them.
func TestReleaseOfAHalfThatWasLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, "a", "b")
		one, two := c.process("-a +b"), c.process("-a +b")
		r := request("lock")
		take(t, one, r)
		if err := two.Renew(t.Context(), []driver.Hold{r.Hold})[0]; err != nil {
			t.Fatal(err)
		}
		if err := c.stores["b"].Connect().Release(t.Context(), r.Hold); err != nil {
			t.Fatal(err)
		}
		if err := two.Release(t.Context(), r.Hold); !errors.Is(err, driver.ErrLost) {
			t.Errorf("%v, want ErrLost", err)
		}
	})
}

// floorless is a member that can't raise its fences.
type floorless struct{ *memlock.Backend }

func (m floorless) Caps() driver.Caps {
	c := m.Backend.Caps()
	c.Floor = false
	return c
}

// Where members can't raise their fences, moving names have none. The others keep theirs.
func TestFencesWithoutAFloor(t *testing.T) {
	members := []shard.Member{
		{Name: "a", Backend: floorless{memlock.New()}}, {Name: "b", Backend: floorless{memlock.New()}},
		{Name: "c", Backend: floorless{memlock.New()}, State: shard.Joining},
	}
	p, err := shard.New(t.Context(), members, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	old, err := shard.NewRouter("", "a", "b")
	if err != nil {
		t.Fatal(err)
	}
	for member, moves := range map[string]bool{"a": false, "b": false, "c": true} {
		name := at(t, member, "a", "b", "c")
		if !moves && old.Of(name) != member {
			t.Fatalf("%s moves from %s to %s", name, old.Of(name), member)
		}
		g, err := p.Acquire(t.Context(), request(name))
		if err != nil || (g.Fence == 0) != moves {
			t.Errorf("a name of %s, which moves: %v; fence %d, %v", member, moves, g.Fence, err)
		}
	}
}

// A registration whose Owner was released comes back with a fresh one.
func TestRegistrationOfAReleasedOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, "a", "b", "c")
		p := c.process("a b c")
		a := p.wires["a"]
		a.spend(3)
		a.replace(memlock.NewStore())
		time.Sleep(time.Minute)
		info, err := a.Inspect(t.Context(), "distlock:shard:")
		if err != nil || len(info.Holders) != 1 || a.spends != 0 {
			t.Errorf("%+v, %v", info, err)
		}
	})
}

// Groups do not see each other.
func TestRegistrationNamesAreReserved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newCluster(t, "a").process("a")
		_, err := p.Acquire(t.Context(), request("distlock:shard:x"))
		if !errors.Is(err, driver.ErrInvalid) {
			t.Error(err)
		}
		if err := p.List(t.Context(), "", func(name string) bool { t.Errorf("listed: %s", name); return true }); err != nil {
			t.Error(err)
		}
	})
}
