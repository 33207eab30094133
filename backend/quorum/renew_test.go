package quorum_test

import (
	"context"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/backend/quorum"
	"github.com/distlock/distlock/driver"
)

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
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t, 3)
				b, w := c.process()
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
				if n := c.votes(r.Hold); n != 3 {
					t.Errorf("%d votes are left of a hold that was renewed for an hour", n)
				}
			})
		})
	}
}

// A vote that is won back lives as long as the hold does.
func TestVoteIsWonBackForTheLongerLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3)
		b, _ := c.process()
		r := request(driver.Exclusive)
		take(t, b, r)
		extend(t, b, r, time.Hour)
		c.stores[0].Connect().Release(t.Context(), r.Hold)
		renewed(t, b, r)
		renewed(t, b, r)
		time.Sleep(59 * time.Minute)
		if n := c.votes(r.Hold); n != 3 {
			t.Errorf("%d votes after 59 of 60 minutes", n)
		}
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
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t, 3)
				b, w := c.process()
				r := request(driver.Exclusive)
				hold(t, b, w, r)
				synctest.Wait() // a majority decides, and the silent member is to have a vote
				w.cut(0)
				err := b.Release(t.Context(), r.Hold)
				switch {
				case err != nil && name == "without an answer":
					// A vote may have ended meanwhile, so that too few can tell what was released.
					isUnknown(t, "release", err)
				case err != nil:
					t.Fatal(err)
				}
				time.Sleep(10 * time.Minute)
				if n := c.votes(r.Hold); n != 1 {
					t.Fatalf("%d votes are left, want 1: that of the silent member", n)
				}
				w.restore()
				time.Sleep(10 * time.Second)
				c.leavesNothing(t, r.Hold)
			})
		})
	}
}

// The last renewal, with Shorten, ends the hold everywhere, and nothing keeps it longer.
func TestShortenEndsTheHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3)
		b, _ := c.process()
		r := request(driver.Exclusive)
		take(t, b, r)
		extend(t, b, r, time.Hour)
		c.stores[0].Connect().Release(t.Context(), r.Hold)
		renewed(t, b, r)
		last := r
		last.TTL, last.Shorten = time.Second, true
		renewed(t, b, last) // the second that finds no vote at the first member
		time.Sleep(2 * time.Second)
		c.leavesNothing(t, r.Hold)
	})
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
		b, err := quorum.New([]driver.Backend{generous{&odd{Backend: memlock.New()}}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		r := request(driver.Exclusive)
		if g := take(t, b, r); g.TTL != r.TTL {
			t.Errorf("%v is believed, asked for %v", g.TTL, r.TTL)
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
		b, err := quorum.New([]driver.Backend{m}, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		r := request(driver.Exclusive)
		take(t, b, r)
		const longest = math.MaxInt64 - time.Hour
		if extend(t, b, r, longest); m.asked < longest {
			t.Errorf("the member was asked for %v, want at least %v", m.asked, longest)
		}
	})
}
