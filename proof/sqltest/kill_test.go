package sqltest

import (
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/internal/testkit/exclusion"
	"github.com/distlock/distlock/internal/testkit/must"
)

// kills is how many connections TestLongRandomKills ends for each strategy.
var kills = flag.Int("kills", 80, "connections that TestLongRandomKills ends for each strategy")

// contender is a client whose goroutines compete for the same locks while its connections are killed. Its checker counts: the
// next may hold before the one whose connection has ended knows of that.
type contender struct {
	*exclusion.Checker
	t      *testing.T
	client *distlock.Client
	cut    atomic.Int64 // waits
}

// Connections are killed at random, and waits are cancelled. Each call still returns, locks stay
// usable, Unlock of a lost lock fails, and Close returns.
func TestRandomKills(t *testing.T) { killRandomly(t, 15) }

func TestLongRandomKills(t *testing.T) { killRandomly(t, *kills) }

func killRandomly(t *testing.T, kills int) {
	t.Parallel()
	eachOnConnections(t, func(t *testing.T, s strategy) {
		c := newScene(t, s, s.kind.shared(t))
		user := c.user()
		p := must.Get(c.open(t.Context(), user))(t)
		m := &contender{Checker: exclusion.New(), t: t, client: p.Client}
		ctx, stop := context.WithCancel(t.Context())
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				for ctx.Err() == nil && !t.Failed() {
					m.attempt(fmt.Sprint("lock ", rand.IntN(2)))
				}
			})
		}
		c.killAtRandom(user, kills)
		ends(t, "a hold, and a wait that is cut short", m.awaitBoth)
		stop()
		ends(t, "Lock or Unlock", all.Wait)
		closes(t, p.Client)
		holds, lost := m.Holds()
		figure(t, "%d connections ended: %d holds, %d of them lost, %d waits cut short", kills, holds, lost, m.cut.Load())
	})
}

// awaitBoth waits until there was a hold and a cancelled wait.
func (c *contender) awaitBoth() {
	for holds := 0; holds == 0 || c.cut.Load() == 0; holds, _ = c.Holds() {
		time.Sleep(time.Millisecond)
	}
}

// attempt waits for a lock and unlocks it. A third of the waits are cancelled.
func (c *contender) attempt(name string) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if rand.IntN(3) == 0 {
		time.AfterFunc(time.Duration(rand.IntN(10_000))*time.Microsecond, cancel)
	}
	lease, err := c.client.Mutex(name).Lock(ctx)
	switch {
	case err == nil:
	case errors.Is(ctx.Err(), context.Canceled):
		c.cut.Add(1)
		return
	default:
		c.t.Errorf("lock: %v", err)
		return
	}
	c.Enter("contender", lease)
	time.Sleep(time.Duration(rand.IntN(8000)) * time.Microsecond)
	succeeded := c.Fence(name) > lease.Fence()
	c.Leave(lease)
	soon, end := context.WithTimeout(context.Background(), patience)
	defer end()
	err = lease.Unlock(soon)
	switch {
	case err == nil && succeeded:
		c.t.Errorf("fence %d of %q was unlocked without an error after a greater one was granted", lease.Fence(), name)
	case err != nil && soon.Err() != nil && !errors.Is(err, distlock.ErrLost):
		c.t.Errorf("unlock: %v", err)
	}
}

// killAtRandom kills n connections of a user, one after the other.
func (s *scene) killAtRandom(userURL string, n int) {
	db := s.srv.DB(s.t, s.database)
	last := time.Now()
	for done := 0; done < n && !s.t.Failed(); {
		if time.Since(last) > patience {
			s.t.Error("no new connections are opened")
			return
		}
		time.Sleep(time.Duration(rand.IntN(60)) * time.Millisecond)
		id, err := s.anyConnection(db, userURL)
		if errors.Is(err, sql.ErrNoRows) {
			continue
		}
		if err != nil {
			s.t.Error(err)
			return
		}
		if _, err := db.ExecContext(s.t.Context(), fmt.Sprintf(s.kind.killOne, id)); err == nil { // otherwise it is gone
			done++
			last = time.Now()
		}
	}
}

func (s *scene) anyConnection(db *sql.DB, userURL string) (id string, err error) {
	err = db.QueryRowContext(s.t.Context(), fmt.Sprintf(s.kind.anyOne, nameOf(userURL))).Scan(&id)
	return id, err
}
