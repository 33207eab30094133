package quorum_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/backend/quorum"
	"github.com/distlock/distlock/driver"
)

// A downgrade without an answer, through another connection than the one that acquired, leaves the writer its
// votes.
func TestSilentDowngradeThroughAnotherConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var own, other []driver.Backend
		for i, name := range []string{"a", "b", "c"} {
			store := memlock.NewStore()
			m := &scripted{Backend: store.Connect(), name: name}
			if i > 0 {
				m.acquire = errReset
			}
			own, other = append(own, &scripted{Backend: store.Connect(), name: name}), append(other, m)
		}
		one, err := quorum.New(own, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer one.Close()
		two, err := quorum.New(other, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer two.Close()
		w := request(driver.Write)
		if _, err := one.Acquire(t.Context(), w); err != nil {
			t.Fatal(err)
		}
		down := w
		down.Mode = driver.Read
		if _, err := two.Acquire(t.Context(), down); err == nil || errors.Is(err, driver.ErrHeld) || driver.Final(err) {
			t.Fatalf("a downgrade that one of three members answered: %v", err)
		}
		time.Sleep(time.Second) // for what is released in the background
		if err := one.Renew(t.Context(), []driver.Hold{w.Hold})[0]; err != nil {
			t.Errorf("the writer lost its votes: %v", err)
		}
		rival := request(driver.Write)
		rival.Name = w.Name
		if _, err := one.Acquire(t.Context(), rival); !errors.Is(err, driver.ErrHeld) {
			t.Errorf("another writer: %v", err)
		}
		if err := two.Release(t.Context(), w.Hold); err != nil {
			t.Error(err)
		}
	})
}

// A vote of a hold that another connection has downgraded is won back as a reader's.
func TestVotesAreWonBackForReading(t *testing.T) {
	inCluster(t, 3, func(t *testing.T, c *cluster, one *quorum.Backend, w *wire) {
		two, _ := c.process()
		r := request(driver.Write)
		take(t, one, r)
		r.Mode = driver.Read
		take(t, two, r)
		c.stores[2] = memlock.NewStore()
		w.replace(2, c.stores[2])
		for range 3 {
			if err := one.Renew(t.Context(), []driver.Hold{r.Hold})[0]; err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
		}
		info, err := c.stores[2].Connect().Inspect(t.Context(), r.Name)
		if err != nil || len(info.Holders) != 1 || info.Holders[0].Mode != driver.Read {
			t.Errorf("%+v, %v; want a reader", info.Holders, err)
		}
	})
}

// A reader that is refused for good leaves no vote behind, though it may be a writer's downgrade as far as is known here.
func TestRefusedReaderLeavesNoVote(t *testing.T) {
	for _, slow := range []bool{false, true} {
		inCluster(t, 3, func(t *testing.T, c *cluster, b *quorum.Backend, w *wire) {
			r := request(driver.Read)
			for _, s := range c.stores[:2] {
				mutex := request(driver.Exclusive)
				mutex.Name = r.Name
				take(t, s.Connect(), mutex)
			}
			if slow {
				w.slow(2, 100*time.Millisecond)
			}
			if _, err := b.Acquire(t.Context(), r); !errors.Is(err, driver.ErrInvalid) {
				t.Errorf("a reader of a mutex: %v", err)
			}
			time.Sleep(time.Second)
			info, err := c.stores[2].Connect().Inspect(t.Context(), r.Name)
			if err != nil || len(info.Holders) > 0 {
				t.Errorf("slow: %v: %+v, %v; want no vote", slow, info.Holders, err)
			}
		})
	}
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
			if err := b.Release(t.Context(), r.Hold); err != nil {
				t.Fatal(err)
			}
		}
	})
}
