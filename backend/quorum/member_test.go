package quorum_test

import (
	"context"
	"fmt"
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/backend/quorum"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
)

// With a silent minority calls take no longer than without. Missed releases are repeated when the
// members are back, and Close does not wait for them for long.
func TestSilentMinority(t *testing.T) {
	inCluster(t, 5, func(t *testing.T, c *cluster, b *quorum.Backend, w *wire) {
		other, _ := c.process()
		r := request(driver.Exclusive)
		take(t, b, r)
		synctest.Wait()
		w.cut(0, 3)
		began := time.Now()
		expect.OK(t, b.Renew(t.Context(), []driver.Hold{r.Hold})[0], "renew")
		take(t, b, r)
		if info, err := b.Inspect(t.Context(), r.Name); err != nil || len(info.Holders) != 1 {
			t.Errorf("inspect: %v %v", info, err)
		}
		expect.OK(t, b.Release(t.Context(), r.Hold), "release")
		// The first call does not know yet which members are silent.
		within(t, "all calls", began, time.Second)
		began = time.Now()
		next := request(driver.Exclusive)
		next.Name = "another"
		take(t, b, next)
		expect.OK(t, b.Release(t.Context(), next.Hold), "release")
		expect.Equal(t, time.Since(began), 0, "when the silent members are known")
		c.hasVotes(t, r.Hold, 2)
		w.restore()
		time.Sleep(3 * time.Second)
		c.hasVotes(t, r.Hold, 0)
		take(t, other, request(driver.Exclusive))

		w.cut(1, 2)
		began = time.Now()
		b.Release(t.Context(), r.Hold)
		b.Close()
		within(t, "Close", began, 3*time.Second)
	})
}

// Without a majority nothing is granted, and members keep no votes.
func TestSilentMajority(t *testing.T) {
	inCluster(t, 5, func(t *testing.T, c *cluster, b *quorum.Backend, w *wire) {
		held, r := request(driver.Exclusive), request(driver.Exclusive)
		held.Name = "held"
		take(t, b, held)
		synctest.Wait()
		w.cut(0, 1, 2)
		began := time.Now()
		_, err := b.Acquire(t.Context(), r)
		isUnknown(t, "acquire", err)
		if want := "of 5 members 2 said: yes, 3 failed"; !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("%v\nlacks %q", err, want)
		}
		isUnknown(t, "renew", b.Renew(t.Context(), []driver.Hold{held.Hold})[0])
		isUnknown(t, "release", b.Release(t.Context(), held.Hold))
		_, err = b.Inspect(t.Context(), r.Name)
		isUnknown(t, "inspect", err)
		isUnknown(t, "list", b.List(ctxFor(t, time.Second), "", func(string) bool { return true }))
		within(t, "all calls", began, 6*time.Second)
		c.leavesNothing(t, r.Hold)
		w.restore()
		take(t, b, r)
	})
}

func ctxFor(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// A vote that comes after the attempt has failed is released.
func TestLateVoteIsGivenBack(t *testing.T) {
	inCluster(t, 3, func(t *testing.T, c *cluster, b *quorum.Backend, w *wire) {
		held := request(driver.Exclusive)
		take(t, b, held)
		synctest.Wait()
		c.stores[2].Connect().Release(t.Context(), held.Hold)
		r := request(driver.Exclusive)
		w.slow(2, 100*time.Millisecond)
		began := time.Now()
		expect.Be(t, expect.Err(b.Acquire(t.Context(), r)), driver.ErrHeld, "acquire")
		expect.Equal(t, time.Since(began), 0, "the refusal was certain, and took")
		time.Sleep(150 * time.Millisecond)
		c.leavesNothing(t, r.Hold)
	})
}

// A hold survives the restart of all members, one after the other: votes are won back, and the
// counters are raised.
func TestVotesAreWonBack(t *testing.T) {
	inCluster(t, 3, func(t *testing.T, c *cluster, b *quorum.Backend, w *wire) {
		r := request(driver.Exclusive)
		r.Fences = 1000
		g := take(t, b, r)
		for i := range c.stores {
			synctest.Wait()
			w.kill(i)
			c.stores[i] = memlock.NewStore()
			w.replace(i, c.stores[i])
			time.Sleep(r.TTL / 2)
			renewed(t, b, r)
			time.Sleep(r.TTL / 2)
			renewed(t, b, r)
			w.restore()
			renewed(t, b, r)
			c.hasVotes(t, r.Hold, 2)
			renewed(t, b, r)
			c.hasVotes(t, r.Hold, 3)
		}
		must.OK(t, b.Release(t.Context(), r.Hold))
		if next := take(t, b, request(driver.Exclusive)); next.Fence <= g.Last() {
			t.Errorf("fence %d after %d", next.Fence, g.Last())
		}
	})
}

// A hold that another connection has acquired survives that too, and its votes are released with it.
func TestVotesOfAnAttachedHoldAreWonBack(t *testing.T) {
	inCluster(t, 3, func(t *testing.T, c *cluster, b *quorum.Backend, w *wire) {
		first, _ := c.process()
		r := request(driver.Exclusive)
		r.Meta = map[string]string{"host": "a"}
		take(t, first, r)
		synctest.Wait()
		first.Close()
		for i := range c.stores {
			c.stores[i] = memlock.NewStore()
			w.replace(i, c.stores[i])
			for range 2 {
				time.Sleep(r.TTL / 2)
				renewed(t, b, r)
			}
			c.hasVotes(t, r.Hold, 3)
		}
		expect.Be(t, expect.Err(b.Acquire(t.Context(), request(driver.Exclusive))), driver.ErrHeld, "another Owner")
		must.OK(t, b.Release(t.Context(), r.Hold))
		c.leavesNothing(t, r.Hold)
	})
}

// Renewals without a majority win nothing back, though the Owner held once.
func TestVotesOfAStrangerAreNotWonBack(t *testing.T) {
	inCluster(t, 3, func(t *testing.T, c *cluster, b *quorum.Backend, _ *wire) {
		r := request(driver.Exclusive)
		take(t, c.stores[0].Connect(), r)
		for range 4 {
			expect.Be(t, b.Renew(t.Context(), []driver.Hold{r.Hold})[0], driver.ErrLost, "one vote of three")
			synctest.Wait()
		}
		c.leavesNothing(t, r.Hold)
	})
}

// renewed renews, and waits for late answers.
func renewed(t testing.TB, b driver.Backend, r driver.Request) {
	t.Helper()
	must.OK(t, b.Renew(t.Context(), []driver.Hold{r.Hold})[0], "renew")
	synctest.Wait()
}

// A hold that was lost, released, or failed to raise its fence is not won back.
func TestReleasedIsNotWonBack(t *testing.T) {
	inCluster(t, 3, func(t *testing.T, c *cluster, b *quorum.Backend, _ *wire) {
		r := request(driver.Exclusive)
		take(t, b, r)
		synctest.Wait()
		c.stores[0].Connect().Release(t.Context(), r.Hold)
		renewed(t, b, r)
		must.OK(t, b.Release(t.Context(), r.Hold))
		b.Renew(t.Context(), []driver.Hold{r.Hold})
		b.Renew(t.Context(), []driver.Hold{r.Hold})
		c.leavesNothing(t, r.Hold)
	})
}

// A failed attempt of an Owner that holds does not release its votes.
func TestFailedRefenceKeepsTheVotes(t *testing.T) {
	inCluster(t, 3, func(t *testing.T, c *cluster, b *quorum.Backend, w *wire) {
		r := request(driver.Exclusive)
		take(t, b, r)
		synctest.Wait()
		w.kill(0, 1)
		_, err := b.Acquire(t.Context(), r)
		isUnknown(t, "again", err)
		synctest.Wait()
		c.hasVotes(t, r.Hold, 3)
		w.restore()
		take(t, b, r)
	})
}

// Missed releases of a silent member take no goroutine each. When the member is back it gets all.
func TestManyRemains(t *testing.T) {
	inCluster(t, 3, func(t *testing.T, c *cluster, b *quorum.Backend, w *wire) {
		before := testkit.Goroutines()
		var held []driver.Request
		for i := range 1000 {
			r := request(driver.Exclusive)
			r.Name = fmt.Sprint(i)
			take(t, b, r)
			held = append(held, r)
		}
		synctest.Wait()
		w.kill(1)
		for _, r := range held {
			must.OK(t, b.Release(t.Context(), r.Hold))
		}
		time.Sleep(time.Second)
		if n := testkit.Goroutines() - before; n > 10 {
			t.Errorf("%d goroutines wait for a silent member", n)
		}
		if calls := w.calls.Load(); calls > 7000 {
			t.Errorf("%d calls: a silent member is called for each pending release", calls)
		}
		left := func() (n int) {
			c.stores[1].Connect().List(t.Context(), "", func(string) bool { n++; return true })
			return n
		}
		expect.Equal(t, left(), 1000, "are left at the silent one")
		w.restore()
		time.Sleep(2 * time.Second)
		expect.Equal(t, left(), 0, "are left when it is back")
	})
}

// Calls do not pile up at a silent member: neither a waiter's repeated attempts, nor renewals that
// come faster than the member's timeout.
func TestCallsDoNotPileUp(t *testing.T) {
	for name, call := range map[string]func(b *quorum.Backend, mine, r driver.Request){
		"attempts": func(b *quorum.Backend, _, r driver.Request) { b.Acquire(context.Background(), r) },
		"renewals": func(b *quorum.Backend, mine, _ driver.Request) {
			b.Renew(context.Background(), []driver.Hold{mine.Hold})
		},
		"releases": func(b *quorum.Backend, _, r driver.Request) { b.Release(context.Background(), r.Hold) },
	} {
		t.Run(name, func(t *testing.T) {
			inCluster(t, 3, func(t *testing.T, c *cluster, b *quorum.Backend, w *wire) {
				mine, r := request(driver.Exclusive), request(driver.Exclusive)
				mine.TTL = time.Hour
				take(t, b, mine)
				synctest.Wait()
				w.cut(2)
				before := testkit.Goroutines()
				for range 2000 {
					call(b, mine, r)
					time.Sleep(50 * time.Millisecond)
				}
				if n := testkit.Goroutines() - before; n > 200 {
					t.Errorf("%d goroutines wait for a silent member", n)
				}
				w.restore()
				time.Sleep(3 * time.Second)
				c.hasVotes(t, r.Hold, 0)
				expect.Equal(t, w.most.Load(), 1, "calls at once for one Owner at one member")
			})
		})
	}
}

// odd is a member with replaced answers.
type odd struct {
	*memlock.Backend
	caps    func(*driver.Caps)
	renew   func(driver.Hold) error
	release func(driver.Hold) error
}

func (o *odd) Caps() driver.Caps {
	c := o.Backend.Caps()
	c.Queueing = driver.QueueNever
	if o.caps != nil {
		o.caps(&c)
	}
	return c
}

func (o *odd) Renew(ctx context.Context, holds []driver.Hold) []error {
	errs := o.Backend.Renew(ctx, holds)
	for i, h := range holds {
		if o.renew != nil {
			if err := o.renew(h); err != nil {
				errs[i] = err
			}
		}
	}
	return errs
}

func (o *odd) Release(ctx context.Context, h driver.Hold) error {
	if o.release != nil {
		if err := o.release(h); err != nil {
			return err
		}
	}
	return o.Backend.Release(ctx, h)
}

// odds is a quorum of odd members.
func odds(t testing.TB, c *cluster, change func(*odd)) *quorum.Backend {
	var members []driver.Backend
	for _, s := range c.stores {
		o := &odd{Backend: s.Connect()}
		change(o)
		members = append(members, o)
	}
	b := must.Get(quorum.New(members, nil))(t)
	t.Cleanup(func() { b.Close() })
	return b
}

// A member that granted, and then refuses to raise its counter, keeps no vote.
func TestRefusedRaiseLeavesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2)
		b := odds(t, c, func(o *odd) {
			o.renew = func(h driver.Hold) error {
				if h.Floor > 0 {
					return fmt.Errorf("%w: no more fences", driver.ErrInvalid)
				}
				return nil
			}
		})
		ahead := request(driver.Exclusive)
		must.Get(c.stores[0].Connect().Acquire(t.Context(), ahead))(t)
		must.OK(t, c.stores[0].Connect().Release(t.Context(), ahead.Hold))
		r := request(driver.Exclusive)
		expect.Be(t, expect.Err(b.Acquire(t.Context(), r)), driver.ErrInvalid, "acquire")
		c.leavesNothing(t, r.Hold)
	})
}

// A member that is back, and silent again before all releases reached it, is retried slowly.
func TestSweepIsPatient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1)
		var tries, left atomic.Int64
		b := odds(t, c, func(o *odd) {
			o.release = func(driver.Hold) error {
				time.Sleep(time.Microsecond)
				if tries.Add(1); left.Add(-1) < 0 {
					return errReset
				}
				return nil
			}
		})
		for range 100 {
			r := request(driver.Exclusive)
			r.Name = r.Owner
			take(t, b, r)
			b.Release(t.Context(), r.Hold)
		}
		left.Store(20)
		time.Sleep(time.Second)
		tries.Store(0)
		time.Sleep(time.Second)
		if n := tries.Load(); n > 10 {
			t.Errorf("%d tries in a second", n)
		}
	})
}

// extend renews for longer.
func extend(t testing.TB, b driver.Backend, r driver.Request, ttl time.Duration) {
	t.Helper()
	r.TTL = ttl
	renewed(t, b, r)
}

// An attempt without a decision does not release a hold that was renewed for longer, also after a
// renewal or an attempt for less.
func TestRenewalForLessKeepsTheVotes(t *testing.T) {
	for name, less := range map[string]func(t *testing.T, b driver.Backend, r driver.Request){
		"renew":   func(t *testing.T, b driver.Backend, r driver.Request) { renewed(t, b, r) },
		"acquire": func(t *testing.T, b driver.Backend, r driver.Request) { take(t, b, r) },
	} {
		t.Run(name, func(t *testing.T) {
			inCluster(t, 3, func(t *testing.T, c *cluster, b *quorum.Backend, w *wire) {
				r := request(driver.Exclusive)
				take(t, b, r)
				extend(t, b, r, time.Hour)
				less(t, b, r)
				time.Sleep(time.Minute)
				w.cut(0, 1)
				_, err := b.Acquire(ctxFor(t, 5*time.Second), r)
				isUnknown(t, "an attempt without a majority", err)
				w.restore()
				time.Sleep(10 * time.Second)
				c.hasVotes(t, r.Hold, 3)
			})
		})
	}
}

// A vote that is won back lives as long as the hold does.
func TestVoteIsWonBackForTheLongerLife(t *testing.T) {
	inCluster(t, 3, func(t *testing.T, c *cluster, b *quorum.Backend, _ *wire) {
		r := request(driver.Exclusive)
		take(t, b, r)
		extend(t, b, r, time.Hour)
		c.stores[0].Connect().Release(t.Context(), r.Hold)
		renewed(t, b, r)
		renewed(t, b, r)
		time.Sleep(59 * time.Minute)
		c.hasVotes(t, r.Hold, 3)
	})
}

// A release is retried at a silent member for as long as that may keep the vote: for the longest
// life that was requested, also if no majority answered.
func TestRemainsOfALongerLife(t *testing.T) {
	long := func(r driver.Request) driver.Request {
		r.TTL = time.Hour
		return r
	}
	for name, hold := range map[string]func(*testing.T, driver.Backend, *wire, driver.Request){
		"granted": func(t *testing.T, b driver.Backend, _ *wire, r driver.Request) { take(t, b, long(r)) },
		"renewed": func(t *testing.T, b driver.Backend, _ *wire, r driver.Request) {
			take(t, b, r)
			renewed(t, b, long(r))
		},
		"without an answer": func(t *testing.T, b driver.Backend, w *wire, r driver.Request) {
			take(t, b, r)
			w.cut(1, 2)
			err := b.Renew(ctxFor(t, 5*time.Second), []driver.Hold{long(r).Hold})[0]
			isUnknown(t, "a renewal without a majority", err)
			w.restore()
			synctest.Wait()
		},
	} {
		t.Run(name, func(t *testing.T) {
			inCluster(t, 3, func(t *testing.T, c *cluster, b *quorum.Backend, w *wire) {
				r := request(driver.Exclusive)
				hold(t, b, w, r)
				synctest.Wait() // a majority decides, and the silent member is to have a vote
				w.cut(0)
				err := b.Release(t.Context(), r.Hold)
				switch {
				case err != nil && name == "without an answer":
					// A vote may have ended meanwhile, so that too few members can report the release.
					isUnknown(t, "release", err)
				case err != nil:
					t.Fatal(err)
				}
				time.Sleep(10 * time.Minute)
				must.Equal(t, c.votes(r.Hold), 1, "votes are left")
				w.restore()
				time.Sleep(10 * time.Second)
				c.leavesNothing(t, r.Hold)
			})
		})
	}
}

// generous is a member that reports a longer life than requested.
type generous struct{ *odd }

func (g generous) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	grant, err := g.odd.Acquire(ctx, r)
	grant.TTL += time.Hour
	return grant, err
}

// The drift is for the requested TTL, so a longer one is not trusted: after an hour a member's clock
// may be minutes ahead.
func TestLongerGrantsAreNotBelieved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := must.Get(quorum.New([]driver.Backend{generous{&odd{Backend: memlock.New()}}}, nil))(t)
		defer b.Close()
		r := request(driver.Exclusive)
		if g := take(t, b, r); g.TTL != r.TTL {
			t.Errorf("%v is trusted, %v was requested", g.TTL, r.TTL)
		}
	})
}

// strict is a member that refuses odd TTLs, and records the requested ones.
type strict struct {
	*odd
	asked time.Duration
}

func (m *strict) Renew(ctx context.Context, holds []driver.Hold) []error {
	m.asked = holds[0].TTL
	holds[0].TTL = min(m.asked, time.Hour)
	return m.odd.Renew(ctx, holds)
}

// The drift does not make a nearly maximal TTL negative.
func TestLongestTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &strict{odd: &odd{Backend: memlock.New()}}
		b := must.Get(quorum.New([]driver.Backend{m}, nil))(t)
		defer b.Close()
		r := request(driver.Exclusive)
		take(t, b, r)
		const longest = math.MaxInt64 - time.Hour
		if extend(t, b, r, longest); m.asked < longest {
			t.Errorf("%v was requested from the member, want at least %v", m.asked, longest)
		}
	})
}

// A client that wants very many fences does not use them up.
func TestFencesOfAGrantAreBounded(t *testing.T) {
	inCluster(t, 3, func(t *testing.T, _ *cluster, b *quorum.Backend, _ *wire) {
		for range 3 {
			r := request(driver.Exclusive)
			r.Fences = 1 << 62
			if g := take(t, b, r); g.Fences == 0 || g.Fences > 1<<20 {
				t.Errorf("%d fences", g.Fences)
			}
			must.OK(t, b.Release(t.Context(), r.Hold))
		}
	})
}
