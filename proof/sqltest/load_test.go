package sqltest

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/exclusion"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
)

const (
	few, many = 40, 200 // waiters
	backends  = 10      // shared by the waiters
	rivals    = 16
)

// crowd is many goroutines that compete for one lock through a few backends.
type crowd struct {
	size    int
	checker *exclusion.Checker
	clients []*distlock.Client
	left    sync.WaitGroup
}

// wantAll starts one Lock in each goroutine.
func (c *crowd) wantAll(t *testing.T) {
	for i := range c.size {
		c.left.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
			defer cancel()
			m := c.clients[i%len(c.clients)].Mutex(lockName)
			expect.OK(t, c.checker.Hold(ctx, fmt.Sprint("waiter ", i), m, 0), "waiter", i)
		})
	}
}

// served waits until all goroutines have had the lock. It polls number, and returns the greatest
// result.
func (c *crowd) served(t *testing.T, number func() int) (most int) {
	done := make(chan struct{})
	go func() {
		c.left.Wait()
		close(done)
	}()
	ends(t, "a waiter's Lock", func() {
		for {
			most = max(most, number())
			select {
			case <-done:
				return
			case <-time.After(5 * time.Millisecond):
			}
		}
	})
	return most
}

// Many waiters for one lock use few connections, while they wait and while the lock is passed around.
func TestWaitersTakeFewConnections(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, s strategy) {
		t.Parallel()
		waitersTakeFewConnections(t, s, few)
	})
}

func TestLongManyWaitersTakeFewConnections(t *testing.T) {
	each(t, func(t *testing.T, s strategy) { waitersTakeFewConnections(t, s, many) })
}

func waitersTakeFewConnections(t *testing.T, s strategy, waiters int) {
	c := newScene(t, s, s.kind.shared(t))
	c.calm()
	held := c.party(c.user()).take(t)
	user := c.user()
	all := &crowd{size: waiters, checker: exclusion.New()}
	for range backends {
		all.clients = append(all.clients, c.party(user).Client)
	}
	all.wantAll(t)
	waiting := c.watchConnections(user, time.Second)
	start := time.Now()
	unlock(t, held)
	moving := all.served(t, func() int { return c.countConnections(user) })
	all.checker.Judge(t, waiters)
	figure(t, "%d waiters in %d backends: %d connections while they wait, %d while the lock goes around, which took %v",
		waiters, backends, waiting, moving, ms(time.Since(start)))
	if most := backends * s.waiting; waiting > most || moving > most {
		t.Errorf("want at most %d connections", most)
	}
}

// watchConnections returns the greatest number of connections that a user had during d.
func (s *scene) watchConnections(userURL string, d time.Duration) (most int) {
	s.t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		most = max(most, s.countConnections(userURL))
	}
	return most
}

// A pool with the documented minimum of connections serves many waiters.
func TestSmallPoolServesAll(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, s strategy) {
		t.Parallel()
		smallPoolServes(t, s, few)
	})
}

func TestLongSmallPoolServesMany(t *testing.T) {
	each(t, func(t *testing.T, s strategy) { smallPoolServes(t, s, many) })
}

func smallPoolServes(t *testing.T, s strategy, waiters int) {
	for _, limit := range s.pools {
		c := newScene(t, s, s.kind.shared(t))
		c.calm()
		all := &crowd{size: waiters, checker: exclusion.New()}
		for range backends {
			all.clients = append(all.clients, c.pooled(limit))
		}
		start := time.Now()
		all.wantAll(t)
		ends(t, "a waiter's Lock", all.left.Wait)
		all.checker.Judge(t, waiters)
		figure(t, "%d waiters in %d backends of %d connections were served in %v", waiters, backends, limit, ms(time.Since(start)))
	}
}

// pooled returns a client on a limited pool.
func (s *scene) pooled(limit int) *distlock.Client {
	s.t.Helper()
	db := s.srv.DB(s.t, s.database)
	db.SetMaxOpenConns(limit)
	query := must.Get(url.ParseQuery(s.query))(s.t)
	b := must.Get(s.kind.open(s.t.Context(), db, query))(s.t)
	client := must.Get(distlock.New(b, &distlock.Options{TTL: s.life, CallTimeout: s.call}))(s.t)
	s.t.Cleanup(func() { ends(s.t, "Close", func() { client.Close() }) })
	return client
}

// 16 backends contend for one lock, and then for new names, whose rows must be inserted.
func TestContentionIsNoError(t *testing.T) {
	each(t, func(t *testing.T, s strategy) { contention(t, s, 200*time.Millisecond) })
}

func TestLongContentionIsNoError(t *testing.T) {
	each(t, func(t *testing.T, s strategy) { contention(t, s, time.Second) })
}

// contention lasts for two units or four.
func contention(t *testing.T, s strategy, unit time.Duration) {
	c := newScene(t, s, s.kind.shared(t))
	c.calm()
	user, before := c.user(), c.countDeadlocks()
	var clients []*distlock.Client
	for range rivals {
		clients = append(clients, c.party(user).Client)
	}
	book := exclusion.New()
	d := unit
	if s.clean {
		d = 3 * unit
	}
	c.contend(book, clients, d, func(int) string { return lockName })
	known := book.Times(lockName)
	c.contend(book, clients, unit, func(round int) string { return fmt.Sprint("new ", round) })
	book.Judge(t, rivals)
	c.judgeErrors(user, c.countDeadlocks()-before)
	all, _ := book.Holds()
	figure(t, "%d rivals: %d holds of one lock in %v, %d of new ones in %v", rivals, known, d, all-known, unit)
}

// contend has all clients take the locks of as many rounds as fit into d.
func (s *scene) contend(book *exclusion.Checker, clients []*distlock.Client, d time.Duration, name func(round int) string) {
	end := time.Now().Add(d)
	var all sync.WaitGroup
	for i, client := range clients {
		all.Go(func() {
			for round := 0; round == 0 || time.Now().Before(end); round++ {
				if err := s.takeTurn(book, fmt.Sprint("rival ", i), client.Mutex(name(round))); err != nil {
					s.t.Errorf("rival %d: %v", i, err)
					return
				}
			}
		})
	}
	ends(s.t, "Lock or Unlock", all.Wait)
}

func (s *scene) takeTurn(book *exclusion.Checker, who string, m *distlock.Mutex) error {
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	lease, err := m.Lock(ctx)
	if err != nil {
		return err
	}
	book.Enter(who, lease)
	book.Leave(lease)
	if err := lease.Unlock(ctx); err != nil && !errors.Is(err, distlock.ErrLost) {
		return err
	}
	return nil
}

// judgeErrors checks the errors that the server sent to a user, and its deadlocks.
func (s *scene) judgeErrors(userURL string, deadlocks int) {
	s.t.Helper()
	answered := s.srv.errors(nameOf(userURL))
	figure(s.t, "the server sent %d errors such as duplicate keys and deadlocks, and counted %d deadlocks", len(answered), deadlocks)
	if !s.clean {
		return
	}
	for i, line := range answered {
		if i < 3 {
			s.t.Errorf("the server reported: %s", line)
		}
	}
	if deadlocks != 0 {
		s.t.Errorf("%d deadlocks, want none", deadlocks)
	}
}

// 16 processes start at once, on a database without tables.
func TestAllCreateAtOnce(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, s strategy) {
		t.Parallel()
		srv := s.kind.shared(t)
		c := &scene{strategy: s, t: t, srv: srv, database: srv.database(t), life: life}
		var all sync.WaitGroup
		for range rivals {
			all.Go(func() {
				b, err := driver.Open(t.Context(), c.url(c.database)+"&create=true")
				if err != nil {
					t.Error(err)
					return
				}
				b.Close()
			})
		}
		ends(t, "Open", all.Wait)
	})
}
