package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/distlock/distlock"
	"github.com/go-redsync/redsync/v4"
	"github.com/redis/rueidis/rueidislock"
)

// trier is a mutex that can be tried once, without waiting.
type trier interface {
	try(ctx context.Context) (bool, error)
}

func (m *distlockMutex) try(ctx context.Context) (held bool, err error) {
	m.lease, err = m.TryLock(ctx)
	return tried(err, distlock.ErrHeld)
}

func (m redsyncMutex) try(ctx context.Context) (bool, error) {
	var taken *redsync.ErrTaken
	err := m.TryLockContext(ctx)
	if errors.As(err, &taken) {
		return false, nil
	}
	return err == nil, err
}

func (m *rueidislockMutex) try(ctx context.Context) (held bool, err error) {
	_, m.cancel, err = m.locker.TryWithContext(ctx, m.name)
	return tried(err, rueidislock.ErrNotLocked)
}

// tried tells a refusal from other errors.
func tried(err, refused error) (bool, error) {
	if errors.Is(err, refused) {
		return false, nil
	}
	return err == nil, err
}

const fleetSize = 50

// fleet is a cron job that starts on all hosts of a fleet, and must run on one.
var fleet = scenario{
	name: onRedis + "/fleet", at: onRedis, contenders: []contender{distlockDefault, redsyncDefault, rueidislockPeer},
	title: fmt.Sprintf("Cron: %d clients try one lock at once, and the winner keeps it", fleetSize), measure: measureFleet,
}

func measureFleet(r *rig, c contender) (figures, error) {
	clients, err := openMany(r, c, fleetSize)
	defer closeAll(clients)
	if err != nil {
		return nil, err
	}
	var times histogram
	runs := 0
	for end := time.Now().Add(r.time); runs == 0 || time.Now().Before(end); runs++ {
		took, err := oneWins(clients)
		if err != nil {
			return nil, err
		}
		times.add(took)
	}
	return figures{
		{"p50-ms", millis(times.quantile(.5))},
		{longest, millis(times.Max)},
		{"jobs", float64(runs)},
		{"winners of each", 1},
	}, nil
}

// oneWins returns how long it took until each client knew whether it has the lock.
func oneWins(clients []client) (time.Duration, error) {
	name := freshName()
	var won atomic.Int64
	var winner mutex
	errs := make([]error, len(clients))
	var wg sync.WaitGroup
	// Some libraries end a hold with the context of its acquisition.
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	start := time.Now()
	for i, cl := range clients {
		m := cl.mutex(name)
		wg.Go(func() {
			held, err := m.(trier).try(ctx)
			if held && won.Add(1) == 1 {
				winner = m
			}
			errs[i] = err
		})
	}
	wg.Wait()
	took := time.Since(start)
	if err := errors.Join(errs...); err != nil {
		return 0, err
	}
	if n := won.Load(); n != 1 {
		return 0, fmt.Errorf("%d of %d clients won", n, len(clients))
	}
	return took, winner.unlock()
}
