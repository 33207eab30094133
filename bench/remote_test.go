package bench

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync/atomic"
	"time"
)

// remoteHold is how long each holder keeps the lock while other clients wait.
const remoteHold = time.Millisecond

// turnsTime returns how long a measurement takes for each client at least. Each could have several turns then, and
// where a turn takes longer than on Redis, the first and last requests of a client do not count for much.
func turnsTime(at string) time.Duration {
	if at == onRedis {
		return 10 * time.Millisecond
	}
	return 100 * time.Millisecond
}

// remote is one lock for which clients wait that share nothing but the server, like processes do.
func remote(at string, waiters int, among []contender) scenario {
	return scenario{
		name: at + "/remote/" + strconv.Itoa(waiters), at: at, contenders: among,
		title: fmt.Sprintf("One lock, held for %v, and %d other clients that wait for it", remoteHold, waiters),
		big:   waiters > 16,
		measure: func(r *rig, c contender) (figures, error) {
			return measureRemote(r, c, waiters+1)
		},
	}
}

func remotes(at string, among []contender, waiters ...int) (all []scenario) {
	for _, n := range waiters {
		all = append(all, remote(at, n, among))
	}
	return all
}

func measureRemote(r *rig, c contender, n int) (figures, error) {
	clients, err := openMany(r, c, n)
	defer closeAll(clients)
	if err != nil {
		return nil, err
	}
	// What only waiters need is opened and prepared before.
	if _, _, err := competeRemotely(clients, freshName(), time.Duration(n)*turnsTime(r.at)/4); err != nil {
		return nil, err
	}
	before, err := r.usage(c)
	if err != nil {
		return nil, err
	}
	t, handoffs, err := competeRemotely(clients, freshName(), max(r.time, time.Duration(n)*turnsTime(r.at)))
	if err != nil {
		return nil, err
	}
	after, err := r.usage(c)
	if err != nil {
		return nil, err
	}
	total := float64(t.total())
	return figures{
		{"acq/s", t.rate()},
		{"commands/acq", float64(after.sent-before.sent) / total},
		{"hand-off-p50-ms", millis(handoffs.quantile(.5))},
		{"hand-off-p99-ms", millis(handoffs.quantile(.99))},
		{longest, millis(t.Times.Max)},
		{"fewest turns", float64(slices.Min(t.Each))},
		{"most turns", float64(slices.Max(t.Each))},
		{"server-µs/acq", micros(after.cpu-before.cpu) / total},
	}, nil
}

// openMany opens n clients that have connected.
func openMany(r *rig, c contender, n int) (clients []client, err error) {
	for range n {
		cl, err := c.open(r.Addr(), ttl)
		if err != nil {
			return clients, err
		}
		clients = append(clients, cl)
		if err := pair(context.Background(), cl.mutex(freshName())); err != nil {
			return clients, err
		}
	}
	return clients, nil
}

func closeAll(clients []client) {
	for _, cl := range clients {
		cl.close()
	}
}

// competeRemotely has one goroutine of each client compete for a lock. A hand-off lasts from before the release
// until the next client has the lock.
func competeRemotely(clients []client, name string, d time.Duration) (t *tally, handoffs histogram, err error) {
	var all guard
	var released atomic.Int64
	start := time.Now()
	t, err = during(d, len(clients), func(ctx context.Context, g int, w *worker) error {
		m := clients[g].mutex(name)
		for !w.over() {
			asked := time.Now()
			if err := m.lock(ctx); err != nil {
				w.times.Max = max(w.times.Max, time.Since(asked))
				return err
			}
			if err := all.enter(m); err != nil {
				return err
			}
			// The lock guards this.
			if last := released.Load(); last > 0 {
				handoffs.add(time.Since(start) - time.Duration(last))
			}
			w.count(time.Since(asked))
			time.Sleep(remoteHold)
			all.leave()
			released.Store(int64(time.Since(start)))
			if err := m.unlock(); err != nil {
				return err
			}
		}
		return nil
	})
	return t, handoffs, err
}
