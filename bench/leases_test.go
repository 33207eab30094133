package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// held is the report of a child that held many leases.
type held struct {
	Heap, RSS  int64 // increase caused by the leases
	Took       time.Duration
	Goroutines int
	CPU        time.Duration // while holding
	Others     tally         // callers of other locks, while holding
}

func manyLeases(at string, among []contender) scenario {
	return scenario{
		name: at + "/leases", at: at, title: "Many leases held by one client, while 4 goroutines lock and unlock other names through it",
		contenders: among, measure: measureLeases,
	}
}

// leasesOf holds a number of leases for long enough to renew them.
func leasesOf(n int) scenario {
	s := manyLeases(onRedis, []contender{never, distlockDefault})
	s.name = onRedis + "/held/" + strconv.Itoa(n)
	s.title = fmt.Sprintf("%d leases held for %v, renewed each %v", n, heldFor, heldFor/6)
	s.big = true
	s.measure = func(r *rig, c contender) (figures, error) {
		with := *r
		with.leases, with.hold = n, heldFor
		return measureLeases(&with, c)
	}
	return s
}

const heldFor = 6 * time.Second

func measureLeases(r *rig, c contender) (figures, error) { return measureLeasesBeside(r, c, 4) }

// measureLeasesBeside has one child acquire all leases and hold them for a while, beside other callers. Where a machine that
// stalls loses some, it is repeated with a longer TTL.
func measureLeasesBeside(r *rig, c contender, others int) (f figures, err error) {
	for life := leaseTTL(r.at, r.hold); ; life *= 3 {
		if f, err = measureLeasesOf(r, c, others, life); !errors.Is(err, errLeasesLost) || life > ttl {
			return f, err
		}
	}
}

var errLeasesLost = errors.New("leases were lost")

func measureLeasesOf(r *rig, c contender, others int, life time.Duration) (figures, error) {
	k := r.coordinator.(keeper)
	defer k.clear()
	j := job{
		Task: "hold", Contender: c.name, At: r.at, Addr: r.Addr(), Name: freshName(), Goroutines: others,
		Leases: r.leases, TTL: life, Time: r.hold,
	}
	if c.name == never.name {
		j.Leases = 0
	}
	p, err := startChild(j)
	if err != nil {
		return nil, err
	}
	defer p.kill()
	before, err := r.usage(c)
	if err != nil {
		return nil, err
	}
	if err := p.proceed(); err != nil {
		return nil, err
	}
	var h held
	if err := p.receive(&h); err != nil {
		return nil, err
	}
	after, err := r.usage(c)
	if err != nil {
		return nil, err
	}
	n, err := k.count(j.holdName(""))
	if err != nil {
		return nil, err
	}
	if n != j.Leases {
		return nil, fmt.Errorf("%w: %s holds %d of %d at the end, TTL %v", errLeasesLost, c.name, n, j.Leases, life)
	}
	return h.figures(j, before, after), nil
}

// leaseTTL returns a TTL in which every lease is renewed a few times while it is held. It is longer if
// a busy disk could delay etcd for that long.
func leaseTTL(at string, hold time.Duration) time.Duration {
	least := time.Duration(0)
	if at != onRedis {
		least = 3 * time.Second
	}
	return max(min(hold/2, ttl), least)
}

func (h *held) figures(j job, before, after usage) figures {
	n := float64(j.Leases)
	each := func(v float64) float64 {
		if n == 0 {
			return math.NaN()
		}
		return v / n
	}
	seconds := h.Others.Elapsed.Seconds()
	sent := after.sent - before.sent - 2*h.Others.total() // the requests of the other callers
	return figures{
		{"client-CPU-%", 100 * h.CPU.Seconds() / seconds},
		{"server-CPU-%", 100 * (after.cpu - before.cpu).Seconds() / seconds},
		{"commands/s", float64(max(sent, 0)) / seconds},
		{"heap-B/lease", each(float64(h.Heap))},
		{"RSS-B/lease", each(float64(h.RSS))},
		{"goroutines", float64(h.Goroutines)},
		{"taken/s", 1 / each(h.Took.Seconds())},
		{"others-p50-ms", millis(h.Others.Times.quantile(.5))},
		{"others-p99-ms", millis(h.Others.Times.quantile(.99))},
		{"held-at-end", n},
	}
}

func (j job) holdName(i string) string { return j.Name + ":hold:" + i }

func holdInChild(j job, cl client, p *peer) error {
	if err := warmUpAlone(cl); err != nil {
		return err
	}
	names := make([]string, j.Leases)
	for i := range names {
		names[i] = j.holdName(strconv.Itoa(i))
	}
	before := memoryInUse()
	start := time.Now()
	mutexes, err := takeAll(cl, names, j.TTL)
	if err != nil {
		return err
	}
	h := held{Took: time.Since(start)}
	after := memoryInUse()
	h.Heap, h.RSS = after.Heap-before.Heap, after.RSS-before.RSS
	h.Goroutines = runtime.NumGoroutine()
	if err := p.ready(); err != nil {
		return err
	}
	mine := cpu()
	others, err := disturb(cl, j)
	if err != nil {
		return err
	}
	h.CPU, h.Others = cpu()-mine, *others
	if err := p.say(h); err != nil {
		return err
	}
	err = p.await() // wait until the parent has counted
	runtime.KeepAlive(mutexes)
	return err
}

// takeTimeout bounds acquiring all leases. It can't be a deadline of the context, since some libraries
// end a lease with the context of its acquisition.
const takeTimeout = 2 * time.Minute

// takeAll acquires all locks, many at a time. If the library doesn't renew them, a goroutine for each
// lock does so every third of the TTL, like user code would. distlock renews by itself at the same
// interval.
func takeAll(cl client, names []string, ttl time.Duration) ([]mutex, error) {
	const takers = 64
	mutexes := make([]mutex, len(names))
	errs := make([]error, takers)
	var next atomic.Int64
	var wg sync.WaitGroup
	for t := range takers {
		wg.Go(func() {
			for errs[t] == nil {
				i := int(next.Add(1)) - 1
				if i >= len(names) {
					return
				}
				mutexes[i] = cl.mutex(names[i])
				errs[t] = mutexes[i].lock(context.Background())
				if e, ok := mutexes[i].(extender); ok && errs[t] == nil {
					go keepAlive(e, ttl/3)
				}
			}
		})
	}
	done := make(chan struct{})
	go func() {
		wg.Wait()
		close(done)
	}()
	select {
	case <-done:
		return mutexes, errors.Join(errs...)
	case <-time.After(takeTimeout):
		return nil, fmt.Errorf("not all of %d free locks were taken within %v", len(names), takeTimeout)
	}
}

// keepAlive renews until the lock is lost.
func keepAlive(e extender, every time.Duration) {
	time.Sleep(rand.N(every))
	for range time.Tick(every) {
		if e.extend(context.Background()) != nil {
			return
		}
	}
}

// disturb locks and unlocks other names at intervals, through the same client.
func disturb(cl client, j job) (*tally, error) {
	return during(j.Time, j.Goroutines, func(ctx context.Context, g int, w *worker) error {
		m := cl.mutex(j.Name + ":other:" + strconv.Itoa(g))
		for !w.over() {
			start := time.Now()
			if err := pair(ctx, m); err != nil {
				return err
			}
			w.count(time.Since(start))
			time.Sleep(rand.N(10 * time.Millisecond))
		}
		return nil
	})
}

// warmUpAlone opens connections and loads scripts by uncontended locks.
func warmUpAlone(cl client) error {
	name := "bench:warm:" + strconv.FormatUint(rand.Uint64(), 36)
	m := cl.mutex(name)
	for range 10 {
		if err := pair(context.Background(), m); err != nil {
			return err
		}
	}
	return nil
}
