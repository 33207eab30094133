package quorum_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/backend/quorum"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
)

func TestNewRefuses(t *testing.T) {
	one, two := memlock.New(), memlock.New()
	for name, c := range map[string]struct {
		members []driver.Backend
		opts    *quorum.Options
		says    string
	}{
		"nobody":       {nil, nil, "no members"},
		"nil":          {[]driver.Backend{one, nil}, nil, "member 2 is nil"},
		"one twice":    {[]driver.Backend{one, two, one}, nil, "twice"},
		"two prefixes": {[]driver.Backend{named{one, "redis://h:1/0?prefix=a:"}, named{two, "redis://h:1/0?layout=redisson&prefix=b:"}}, nil, "redis://h:1/0 is a member twice"},
		"timeout":      {[]driver.Backend{one}, &quorum.Options{MemberTimeout: -1}, "MemberTimeout"},
	} {
		_, err := quorum.New(c.members, c.opts)
		if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(fmt.Sprint(err), c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// named is a backend with another name.
type named struct {
	*memlock.Backend
	name string
}

func (b named) Caps() driver.Caps {
	c := b.Backend.Caps()
	c.Name = b.name
	return c
}

func TestCaps(t *testing.T) {
	b, _ := newCluster(t, 3).process()
	c := b.Caps()
	if c.Modes != driver.Modes(driver.Exclusive) || c.Queueing != driver.QueueNever || !c.Fence || !c.Floor || c.Downgrade || c.Session {
		t.Errorf("%+v", c)
	}
	for mode, says := range map[driver.Mode]string{
		driver.Counted: "3 users could each win 2 of 3", driver.Read: "use one coordinator", driver.Write: "use one coordinator",
	} {
		_, err := b.Acquire(t.Context(), request(mode))
		if !errors.Is(err, driver.ErrUnsupported) || !strings.Contains(err.Error(), says) {
			t.Errorf("mode %v: %v", mode, err)
		}
	}
	r := request(driver.Exclusive)
	r.Queue = true
	expect.Be(t, expect.Err(b.Acquire(t.Context(), r)), driver.ErrUnsupported, "a queue")
}

// A hold without a majority is lost, and its remaining votes are released.
func TestLostIsAFact(t *testing.T) {
	inCluster(t, 5, func(t *testing.T, c *cluster, b *quorum.Backend, w *wire) {
		r := request(driver.Exclusive)
		take(t, b, r)
		synctest.Wait()
		for i := range 2 {
			c.stores[i].Connect().Release(t.Context(), r.Hold)
		}
		w.kill(2)
		isUnknown(t, "two said yes, two no", b.Renew(t.Context(), []driver.Hold{r.Hold})[0])
		w.restore()
		b.Inspect(t.Context(), r.Name) // shows that all are there again
		synctest.Wait()
		c.stores[2].Connect().Release(t.Context(), r.Hold)
		expect.Be(t, b.Renew(t.Context(), []driver.Hold{r.Hold})[0], driver.ErrLost, "held by at most two of five")
		c.leavesNothing(t, r.Hold)
	})
}

// A release with too few answers reports neither that the Owner held nor that it did not: the
// members that answered ErrLost may have granted a successor together with the silent ones.
func TestReleaseOfWhichTooFewKnow(t *testing.T) {
	inCluster(t, 3, func(t *testing.T, c *cluster, b *quorum.Backend, w *wire) {
		r := request(driver.Exclusive)
		take(t, b, r)
		synctest.Wait()
		for i := range 2 {
			c.stores[i].Connect().Release(t.Context(), r.Hold)
		}
		w.kill(0)
		successor := request(driver.Exclusive)
		for i := range 2 {
			take(t, c.stores[i].Connect(), successor)
		}
		isUnknown(t, "one released, one had nothing, one is silent", b.Release(t.Context(), r.Hold))
		expect.Be(t, b.Release(t.Context(), r.Hold), driver.ErrLost, "released again")
	})
}

// A batch does not wait for a slow member.
func TestRenewDoesNotWait(t *testing.T) {
	inCluster(t, 3, func(t *testing.T, c *cluster, b *quorum.Backend, w *wire) {
		var holds []driver.Hold
		for i := range 100 {
			r := request(driver.Exclusive)
			r.Name = fmt.Sprint(i)
			take(t, b, r)
			holds = append(holds, r.Hold)
		}
		synctest.Wait()
		calls := w.calls.Load()
		w.slow(1, 500*time.Millisecond)
		began := time.Now()
		for i, err := range b.Renew(t.Context(), holds) {
			expect.OK(t, err, "hold", i)
		}
		expect.Equal(t, time.Since(began), 0, "the renewal took")
		time.Sleep(time.Second)
		if n := w.calls.Load() - calls; n != 3 {
			t.Errorf("it made %d calls, want one for each member", n)
		}
	})
}

// Each member gets one call at a time for an Owner, although calls do not wait for slow members.
func TestCallsForAnOwnerAreInOrder(t *testing.T) {
	inCluster(t, 3, func(t *testing.T, c *cluster, b *quorum.Backend, w *wire) {
		w.slow(1, 300*time.Millisecond)
		r := request(driver.Exclusive)
		for range 3 {
			take(t, b, r)
			renewed := b.Renew(t.Context(), []driver.Hold{r.Hold})[0]
			if err := b.Release(t.Context(), r.Hold); err != nil || renewed != nil {
				t.Errorf("renewed: %v, released: %v", renewed, err)
			}
		}
		time.Sleep(10 * time.Second)
		expect.Equal(t, w.most.Load(), 1, "calls at once for one Owner at one member")
		c.hasVotes(t, r.Hold, 0)
	})
}

// OnLost is called when the members that have not called it are no majority.
func TestOnLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, w := newCluster(t, 3).process()
		var lost atomic.Int32
		r := request(driver.Exclusive)
		r.OnLost = func() { lost.Add(1) }
		take(t, b, r)
		take(t, b, r)
		synctest.Wait()
		for i, want := range []int32{0, 1, 1} {
			w.lose(i, r.Owner)
			if n := lost.Load(); n != want {
				t.Errorf("notified %d times when %d of 3 members had lost it, want %d", n, i+1, want)
			}
		}
	})
}

// Members that can't inspect or push are left out.
func TestOptionalCalls(t *testing.T) {
	var bare []driver.Backend
	for range 3 {
		bare = append(bare, struct{ driver.Backend }{memlock.New()})
	}
	b := must.Get(quorum.New(bare, nil))(t)
	defer b.Close()
	_, err := b.Watch(t.Context(), request(driver.Exclusive))
	expect.Be(t, err, driver.ErrSkip, "watch")
	if _, err = b.Inspect(t.Context(), "lock"); !errors.Is(err, driver.ErrSkip) {
		t.Errorf("inspect: %v", err)
	}
	if err = b.List(t.Context(), "", func(string) bool { return true }); !errors.Is(err, driver.ErrSkip) {
		t.Errorf("list: %v", err)
	}
}

// takingMember waits natively: its Watch takes the lock for the Owner. A quorum that has refused and released the Owner
// would not know of it.
type takingMember struct{ *memlock.Backend }

func (m takingMember) Caps() driver.Caps {
	c := m.Backend.Caps()
	c.Queueing, c.QueuedModes, c.Session = driver.QueueNever, 0, true
	return c
}

func (m takingMember) Watch(ctx context.Context, r driver.Request) (driver.Watch, error) {
	if _, err := m.Acquire(ctx, r); err != nil {
		return driver.Watch{}, err
	}
	return driver.Watch{Ready: make(chan struct{}), Close: func() {}}, nil
}

// A member whose watch might take the lock is not watched.
func TestMembersThatTakeAreNotWatched(t *testing.T) {
	var members []driver.Backend
	for range 3 {
		members = append(members, takingMember{memlock.New()})
	}
	b := must.Get(quorum.New(members, nil))(t)
	defer b.Close()
	r := request(driver.Exclusive)
	expect.Be(t, expect.Err(b.Watch(t.Context(), r)), driver.ErrSkip, "watch")
	for i, m := range members {
		info, err := m.(driver.Inspector).Inspect(t.Context(), r.Name)
		if err != nil || len(info.Holders) > 0 {
			t.Errorf("member %d has %+v, %v", i, info.Holders, err)
		}
	}
}

// Split votes are resolved: one of many concurrent attempts wins.
func TestSplitVote(t *testing.T) {
	c := newCluster(t, 5)
	for round := range 40 {
		won := make(chan error, 5)
		start := make(chan struct{})
		for i := range 5 {
			b, w := c.process()
			for m := range 5 {
				if m != i {
					w.slow(m, time.Duration(1+(m+i)%3)*time.Millisecond)
				}
			}
			r := request(driver.Exclusive)
			r.Name = fmt.Sprint(round)
			go func() {
				<-start
				_, err := b.Acquire(context.Background(), r)
				won <- err
			}()
		}
		close(start)
		wins := 0
		for range 5 {
			if err := <-won; err == nil {
				wins++
			} else if !errors.Is(err, driver.ErrHeld) {
				t.Errorf("round %d: %v", round, err)
			}
		}
		if wins != 1 {
			t.Errorf("round %d: %d won", round, wins)
		}
	}
}

// A split vote is resolved even if a dead attempt has some votes. A living attempt wins at once,
// for any missing vote.
func TestSplitVoteWithTheDead(t *testing.T) {
	for _, split := range []string{"-ab", "a-b", "ab-", "-aabb", "aa-bb", "aabb-", "-abba", "-abcd", "ab-cd", "abcd-", "-aabc", "-abcc", "--abc", "a--bc", "abc--"} {
		t.Run(split, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t, len(split))
				c.seize(t, split)
				won := c.race(t, split)
				expect.Equal(t, len(won), 1, "won")
			})
		})
	}
}

// seize lets a dead attempt hold at the members that are marked with a dash.
func (c *cluster) seize(t *testing.T, split string) {
	for i, who := range split {
		if who == '-' {
			must.Get(c.stores[i].Connect().Acquire(t.Context(), request(driver.Exclusive)))(t)
		}
	}
}

// race starts the named attempts at the same time, each nearest to the members that are marked
// with its name. It returns the attempts that were granted.
func (c *cluster) race(t *testing.T, split string) (won []driver.Request) {
	names := slices.Compact(slices.Sorted(slices.Values([]rune(split))))
	granted := make(chan driver.Request, len(names))
	var wg sync.WaitGroup
	for _, name := range names {
		if name == '-' {
			continue
		}
		b, w := c.process()
		for i, who := range split {
			if who != name {
				w.slow(i, 2*time.Millisecond)
			}
		}
		wg.Go(func() {
			r := request(driver.Exclusive)
			began := time.Now()
			switch _, err := b.Acquire(t.Context(), r); {
			case err == nil:
				granted <- r
			case !errors.Is(err, driver.ErrHeld):
				t.Errorf("%c: %v", name, err)
			}
			within(t, "an attempt", began, 100*time.Millisecond)
		})
	}
	wg.Wait()
	close(granted)
	for r := range granted {
		won = append(won, r)
	}
	return won
}

// scripted is a member whose calls fail with the given errors.
type scripted struct {
	*memlock.Backend
	name           string
	acquire, renew error
	releases       atomic.Int64
}

func (m *scripted) Caps() driver.Caps {
	c := m.Backend.Caps()
	c.Name, c.Queueing = m.name, driver.QueueNever
	return c
}

func (m *scripted) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if m.acquire != nil {
		return driver.Grant{}, m.acquire
	}
	r.Fences = 1 // fewer than requested: all have to be raised
	return m.Backend.Acquire(ctx, r)
}

func (m *scripted) Renew(ctx context.Context, holds []driver.Hold) []error {
	if m.renew != nil {
		return []error{m.renew}
	}
	return m.Backend.Renew(ctx, holds)
}

func (m *scripted) Release(ctx context.Context, h driver.Hold) error {
	m.releases.Add(1)
	return m.Backend.Release(ctx, h)
}

// A release that no member received is sent again in the background, so it may end the hold later.
func TestReleaseIsNeverUnsent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var down atomic.Bool
		down.Store(true)
		var members []driver.Backend
		for _, name := range []string{"a", "b", "c"} {
			members = append(members, &refusing{memlock.NewStore().Connect(), name, &down})
		}
		b := must.Get(quorum.New(members, nil))(t)
		defer b.Close()
		r := request(driver.Exclusive)
		_ = must.Get(b.Acquire(t.Context(), r))(t)
		if err := b.Release(t.Context(), r.Hold); err == nil || errors.Is(err, driver.ErrLost) || errors.Is(err, driver.ErrUnsent) {
			t.Errorf("Release: %v, and it goes on", err)
		}
		synctest.Wait()
		down.Store(false)
		time.Sleep(2 * time.Second)
		expect.OK(t, b.Release(t.Context(), r.Hold), "Release again, of what was released in the background")
		expect.Be(t, b.Release(t.Context(), r.Hold), driver.ErrLost, "Release once more")
	})
}

// A release that answers nobody any more has ended the hold all the same: the one that repeats it says so, unless the Owner has
// asked for the lock since.
func TestReleaseBehindItsCaller(t *testing.T) {
	for _, asked := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			c := newCluster(t, 3)
			b, w := c.process()
			other, _ := c.process()
			r := request(driver.Exclusive)
			_ = must.Get(b.Acquire(t.Context(), r))(t)
			w.cut(0, 1, 2)
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			expect.Be(t, b.Release(ctx, r.Hold), context.DeadlineExceeded, "Release without a network")
			w.restore()
			time.Sleep(2 * time.Second)
			want := error(nil)
			if asked {
				_ = must.Get(other.Acquire(t.Context(), request(driver.Exclusive)))(t)
				expect.Be(t, expect.Err(b.Acquire(t.Context(), r)), driver.ErrHeld, "another attempt")
				want = driver.ErrLost
			}
			if err := b.Release(t.Context(), r.Hold); !errors.Is(err, want) {
				t.Errorf("Release again, asked since: %v: %v; want %v", asked, err, want)
			}
		})
	}
}

// refusing refuses releases while it is down.
type refusing struct {
	*memlock.Backend
	name string
	down *atomic.Bool
}

func (m *refusing) Caps() driver.Caps {
	c := m.Backend.Caps()
	c.Name = m.name
	return c
}

func (m *refusing) Release(ctx context.Context, h driver.Hold) error {
	if m.down.Load() {
		return driver.Unsent(errors.New("connection refused"))
	}
	return m.Backend.Release(ctx, h)
}

// An attempt is unsent only if it is unsent at each member. A member without a request gets no
// release.
func TestUnsent(t *testing.T) {
	refused := driver.Unsent(errors.New("connection refused"))
	for what, c := range map[string]struct {
		acquire, renew [3]error
		want           bool
		releases       [3]int64
	}{
		"all":         {acquire: [3]error{refused, refused, refused}, want: true},
		"all but one": {acquire: [3]error{refused, errReset, refused}, releases: [3]int64{0, 1, 0}},
		"two of them": {acquire: [3]error{refused, nil, refused}, releases: [3]int64{0, 1, 0}},
		"the fences":  {renew: [3]error{refused, refused, refused}, releases: [3]int64{1, 1, 1}},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var members []driver.Backend
				var all []*scripted
				for i, name := range []string{"a", "b", "c"} {
					m := &scripted{Backend: memlock.NewStore().Connect(), name: name, acquire: c.acquire[i], renew: c.renew[i]}
					all, members = append(all, m), append(members, m)
				}
				b := must.Get(quorum.New(members, nil))(t)
				defer b.Close()
				r := request(driver.Exclusive)
				r.Fences = 8
				_, err := b.Acquire(t.Context(), r)
				if err == nil || errors.Is(err, driver.ErrUnsent) != c.want {
					t.Errorf("Acquire: %v; does it match ErrUnsent? want %v", err, c.want)
				}
				synctest.Wait()
				for i, m := range all {
					expect.Equal(t, m.releases.Load(), c.releases[i], "releases at member", m.name)
				}
			})
		})
	}
}
