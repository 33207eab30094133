package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/faultproxy"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// replyLossRun is one name that owners in several processes use while the network loses
// requests and answers.
type replyLossRun struct {
	name    string
	patient time.Duration // until a call is cut off
	modes   []driver.Mode
	readers atomic.Int32
	writers atomic.Int32
	fence   atomic.Uint64 // the greatest of a writer
	grants  atomic.Int32
	unclear atomic.Int32
}

// turn is an attempt of one owner, and what follows.
func (s *replyLossRun) turn(ctx context.Context, b *Backend, rnd *rand.Rand) error {
	r := request(s.name, s.modes[rnd.IntN(len(s.modes))])
	r.Queue, r.Fixed = rnd.IntN(2) == 0, rnd.IntN(4) == 0
	for range 1 + rnd.IntN(4) {
		g, err := s.call(ctx, func(ctx context.Context) (driver.Grant, error) { return b.Acquire(ctx, r) })
		if driver.Final(err) {
			return fmt.Errorf("acquire: %w", err)
		}
		if err == nil {
			if err := s.hold(ctx, b, r, g, rnd); err != nil {
				return err
			}
			break
		}
	}
	for {
		_, err := s.call(context.WithoutCancel(ctx), func(ctx context.Context) (driver.Grant, error) {
			return driver.Grant{}, b.Release(ctx, r.Hold)
		})
		if err == nil || errors.Is(err, driver.ErrLost) {
			return nil
		}
	}
}

// call makes a call that is cut off before long.
func (s *replyLossRun) call(ctx context.Context, f func(context.Context) (driver.Grant, error)) (driver.Grant, error) {
	ctx, cancel := context.WithTimeout(ctx, s.patient)
	defer cancel()
	g, err := f(ctx)
	if err != nil && !errors.Is(err, driver.ErrHeld) && !errors.Is(err, driver.ErrLost) {
		s.unclear.Add(1)
	}
	return g, err
}

// hold looks who else holds, and asks for the lock again now and then.
func (s *replyLossRun) hold(ctx context.Context, b *Backend, r driver.Request, g driver.Grant, rnd *rand.Rand) error {
	s.grants.Add(1)
	mine := &s.writers
	if r.Mode == driver.Read {
		mine = &s.readers
	}
	mine.Add(1)
	defer mine.Add(-1)
	fresh := true
	for range 1 + rnd.IntN(3) {
		w, rd := s.writers.Load(), s.readers.Load()
		if w > 1 || w == 1 && rd > 0 {
			return fmt.Errorf("%d writers and %d readers hold", w, rd)
		}
		if fresh && r.Mode != driver.Read && s.fence.Swap(g.Fence) >= g.Fence {
			return fmt.Errorf("fence %d is not above the last", g.Fence)
		}
		var err error
		if fresh = rnd.IntN(2) == 0; fresh {
			g, err = s.call(ctx, func(ctx context.Context) (driver.Grant, error) { return b.Acquire(ctx, r) })
		} else {
			_, err = s.call(ctx, func(ctx context.Context) (driver.Grant, error) {
				return driver.Grant{}, b.Renew(ctx, []driver.Hold{r.Hold})[0]
			})
		}
		if errors.Is(err, driver.ErrHeld) || errors.Is(err, driver.ErrLost) {
			return fmt.Errorf("a holder asked again, or renewed: %w", err)
		}
		if err != nil {
			return nil // no fence to speak of
		}
	}
	return nil
}

// Lost requests and answers never make two holders, and leave nothing behind.
func TestLostRepliesNeverMakeTwoHolders(t *testing.T) {
	t.Parallel()
	lostReplies(t, 10)
}

func TestLongLostRepliesNeverMakeTwoHolders(t *testing.T) { lostReplies(t, 500) }

// lostReplies plays until each scene has so many grants.
func lostReplies(t *testing.T, grants int32) {
	t.Helper()
	srv := testserver.SharedEtcd(t)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	admin, first := shared(t), request("", driver.Exclusive)
	start := time.Now()
	acquire(t, admin, first)
	release(t, admin, first)
	patient := max(300*time.Millisecond, 10*time.Since(start))
	var proxies []*faultproxy.Proxy
	var backends []*Backend
	for i := range 3 {
		p := faultproxy.New(t, srv.Addr())
		proxies = append(proxies, p)
		backends = append(backends, openAt(t, p.Addr(), nil))
		p.Storm(seed+uint64(i), 0.01, "")
	}
	scenes := []*replyLossRun{
		{name: request("", 0).Name, patient: patient, modes: []driver.Mode{driver.Exclusive}},
		{name: request("", 0).Name, patient: patient, modes: []driver.Mode{driver.Write, driver.Read, driver.Read}},
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	var wg sync.WaitGroup
	for i := range 12 {
		rnd := rand.New(rand.NewPCG(seed, uint64(i)))
		wg.Go(func() {
			for ctx.Err() == nil && !t.Failed() {
				s := scenes[rnd.IntN(len(scenes))]
				if err := s.turn(ctx, backends[i%len(backends)], rnd); err != nil {
					t.Errorf("%v: %v", s.modes, err)
				}
			}
		})
	}
	for ctx.Err() == nil && (scenes[0].grants.Load() < grants || scenes[1].grants.Load() < grants) && !t.Failed() {
		time.Sleep(10 * time.Millisecond)
	}
	cancel()
	for _, p := range proxies {
		p.Storm(0, 0, "")
	}
	wg.Wait()
	for _, s := range scenes {
		t.Logf("%v: %d grants, %d calls without an answer", s.modes, s.grants.Load(), s.unclear.Load())
		if s.grants.Load() < grants && !t.Failed() {
			t.Errorf("%v: too few grants", s.modes)
		}
		eventually(t, "nothing is left", func() bool { return len(storedKeys(t, admin, s.name)) == 0 })
	}
}
