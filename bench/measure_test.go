package bench

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/distlock/distlock/bench/measured"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/redis/go-redis/v9"
)

var measureFlag = flag.String("measure", "", "measure for the simulator, and write measured/measured.json: costs, contention or leases")

// TestMeasure measures what the simulator in proof/sim is fed with, and the points that its predictions are compared
// with. A part takes about a minute:
//
//	for part in costs contention leases; do go test -run TestMeasure -measure $part; done
func TestMeasure(t *testing.T) {
	if *measureFlag == "" {
		return
	}
	const file = "measured/measured.json"
	text, err := os.ReadFile(file) // and not measured.Latest, which is as old as this program
	must.OK(t, err)
	record := measured.Parse(text)
	m := &meter{newRig(t, onRedis), t.Context()}
	switch *measureFlag {
	case "costs":
		err = m.costs(&record.Costs)
	case "contention":
		err = m.contention(&record)
	case "leases":
		err = m.leases(&record)
	default:
		t.Fatalf("no part is called %q", *measureFlag)
	}
	must.OK(t, err)
	record.Machine = m.machine()
	text = must.Get(json.MarshalIndent(record, "", "\t"))(t)
	t.Logf("%s", text)
	must.OK(t, os.WriteFile(file, append(text, '\n'), 0o644))
}

// meter measures for the simulator.
type meter struct {
	*rig
	context.Context
}

func (m *meter) machine() string {
	model := "unknown processor"
	if info, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		if _, after, ok := strings.Cut(string(info), "model name\t: "); ok {
			model, _, _ = strings.Cut(after, "\n")
		}
	}
	version, _ := m.version()
	return fmt.Sprintf("%s, %d processors, %s, %s", model, runtime.NumCPU(), runtime.Version(), version)
}

// step is a number of equal operations.
type step struct {
	n  int
	do func() error
}

// spent is the processor time of one operation, in µs.
type spent struct{ server, client float64 }

// cycle runs all steps a few times. It returns the least for each: other programs only add to it.
func (m *meter) cycle(steps ...step) ([]spent, error) {
	servers, clients := make([][]float64, len(steps)), make([][]float64, len(steps))
	for range 3 {
		for i, s := range steps {
			before, err := m.cpu()
			if err != nil {
				return nil, err
			}
			mine := cpu()
			if err := s.do(); err != nil {
				return nil, err
			}
			mine = cpu() - mine
			after, err := m.cpu()
			if err != nil {
				return nil, err
			}
			servers[i] = append(servers[i], micros(after-before)/float64(s.n))
			clients[i] = append(clients[i], micros(mine)/float64(s.n))
		}
	}
	out := make([]spent, len(steps))
	for i := range out {
		out[i] = spent{slices.Min(servers[i]), slices.Min(clients[i])}
	}
	return out, nil
}

func (m *meter) cpu() (time.Duration, error) {
	u, err := m.usage(contender{})
	return u.cpu, err
}

// costs measures each operation alone.
func (m *meter) costs(c *measured.Costs) error {
	for _, f := range []func(*measured.Costs) error{m.pairs, m.queued, m.renewals, m.watchdog, m.connections, m.times} {
		if err := f(c); err != nil {
			return err
		}
	}
	return nil
}

// pairs measures acquires and releases of free locks.
func (m *meter) pairs(c *measured.Costs) error {
	for _, x := range []struct {
		clients, goroutines, each int
		pair                      *measured.Pair
		client                    *float64
	}{
		{1, 1, 4000, &c.Alone, &c.ClientPair},
		{64, 1, 100, &c.Separate, new(float64)},
		{1, 128, 200, &c.Together, &c.ClientTogether},
	} {
		locks, closeAll, err := m.locks(x.clients, x.goroutines, x.each)
		if err != nil {
			return err
		}
		n := len(locks) * x.each
		cost, err := m.cycle(
			step{n, func() error { return each(locks, func(l mutex) error { return l.lock(m) }) }},
			step{n, func() error { return each(locks, mutex.unlock) }},
		)
		closeAll()
		if err != nil {
			return err
		}
		*x.pair = measured.Pair{Acquire: cost[0].server, Release: cost[1].server}
		*x.client = cost[0].client + cost[1].client
	}
	return nil
}

// locks opens clients, and returns the mutexes of each of their goroutines.
func (m *meter) locks(clients, goroutines, each int) (locks [][]mutex, closeAll func(), err error) {
	var open []client
	closeAll = func() {
		for _, cl := range open {
			cl.close()
		}
	}
	for range clients {
		cl, err := openDistlock(m.Addr(), ttl)
		if err != nil {
			closeAll()
			return nil, nil, err
		}
		open = append(open, cl)
		for range goroutines {
			list := make([]mutex, each)
			for i := range list {
				list[i] = cl.mutex(freshName())
			}
			locks = append(locks, list)
		}
	}
	return locks, closeAll, nil
}

// each calls f for all mutexes, in a goroutine for each list.
func each(locks [][]mutex, f func(mutex) error) error {
	errs := make([]error, len(locks))
	var wg sync.WaitGroup
	for i, list := range locks {
		wg.Go(func() {
			for _, l := range list {
				if err := f(l); err != nil {
					errs[i] = err
				}
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

func request(name string, queue bool) driver.Request {
	return driver.Request{Hold: driver.Hold{Name: name, Owner: driver.NewOwner(), Mode: driver.Exclusive, TTL: ttl}, Queue: queue}
}

// queued measures attempts and releases of one lock that many wait for.
func (m *meter) queued(c *measured.Costs) error {
	b, err := driver.Open(m, "redis://"+m.Addr())
	if err != nil {
		return err
	}
	defer b.Close()
	const n = 1000
	var line []driver.Request
	next := func() error { _, err := b.Acquire(m, line[0]); return err }
	drop := func() error {
		err := b.Release(m, line[0].Hold)
		line = line[1:]
		return err
	}
	cost, err := m.cycle(
		step{n, func() error {
			name := freshName()
			line = []driver.Request{request(name, true)}
			if err := next(); err != nil {
				return err
			}
			for range n {
				r := request(name, true)
				if _, err := b.Acquire(m, r); !errors.Is(err, driver.ErrHeld) {
					return fmt.Errorf("an attempt at a held lock: %v", err)
				}
				line = append(line, r)
			}
			return nil
		}},
		step{n, func() error {
			for range n {
				if err := errors.Join(drop(), next()); err != nil {
					return err
				}
			}
			return drop()
		}},
	)
	if err != nil {
		return err
	}
	c.Refuse = cost[0].server
	c.Turn = cost[1].server
	watch, err := m.cycle(step{n, func() error {
		for range n {
			w, err := b.(driver.Watcher).Watch(m, request(freshName(), true))
			if err != nil {
				return err
			}
			w.Close()
		}
		return nil
	}})
	if err == nil {
		c.Watch = watch[0].server
	}
	return err
}

// renewals measures renewals of one hold and of 500.
func (m *meter) renewals(c *measured.Costs) error {
	b, err := driver.Open(m, "redis://"+m.Addr())
	if err != nil {
		return err
	}
	defer b.Close()
	const many, calls = 500, 100 // so many locks that they are not all in the processor's cache
	holds := make([][]driver.Hold, calls)
	var wg sync.WaitGroup
	errs := make([]error, calls)
	for i := range holds {
		wg.Go(func() {
			for range many {
				r := request(freshName(), false)
				_, err := b.Acquire(m, r)
				errs[i] = errors.Join(errs[i], err)
				holds[i] = append(holds[i], r.Hold)
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	cost, err := m.cycle(
		step{calls, func() error {
			for _, list := range holds {
				if err := errors.Join(b.Renew(m, list)...); err != nil {
					return err
				}
			}
			return nil
		}},
		step{calls * many, func() error { // alone in their scripts, but together in pipelines
			for i, list := range holds {
				wg.Go(func() {
					for k := range list {
						errs[i] = errors.Join(errs[i], b.Renew(m, list[k:k+1])[0])
					}
				})
			}
			wg.Wait()
			return errors.Join(errs...)
		}},
	)
	if err != nil {
		return err
	}
	c.RenewHold = cost[0].server / many
	c.RenewCall = max(0, cost[1].server-c.RenewHold)
	return nil
}

// watchdog measures what the renewal of a hold costs its client.
func (m *meter) watchdog(c *measured.Costs) error {
	const holds, seconds, life = 5000, 6, 3 * time.Second
	cl, err := openDistlock(m.Addr(), life)
	if err != nil {
		return err
	}
	defer cl.close()
	names := make([]string, holds)
	for i := range names {
		names[i] = freshName()
	}
	if _, err := takeAll(cl, names, life); err != nil {
		return err
	}
	runtime.GC()
	start := cpu()
	time.Sleep(seconds * time.Second)
	c.ClientRenewHold = micros(cpu()-start) / (holds * seconds)
	return nil
}

// connections measures what it costs the server to have another client.
func (m *meter) connections(c *measured.Costs) error {
	const n = 300
	idle, err := m.cycle(step{1, func() error { time.Sleep(time.Second); return nil }})
	if err != nil {
		return err
	}
	c.Idle = 100 * idle[0].server / micros(time.Second)
	clients, bytes, err := m.memory()
	if err != nil {
		return err
	}
	var open []*redis.Client
	cost, err := m.cycle(step{n, func() error {
		for range n {
			cl := redis.NewClient(&redis.Options{Addr: m.Addr()})
			open = append(open, cl)
			if err := cl.Ping(m).Err(); err != nil {
				return err
			}
		}
		return nil
	}})
	if err != nil {
		return err
	}
	time.Sleep(8 * time.Second) // by then it has shrunk the buffers of idle connections
	clientsAfter, bytesAfter, err := m.memory()
	if err != nil {
		return err
	}
	for _, cl := range open {
		cl.Close()
	}
	c.Connect, c.Connection = cost[0].server, float64(bytesAfter-bytes)/float64(clientsAfter-clients)
	return nil
}

// memory returns the number of the server's clients, and the memory that it uses.
func (m *meter) memory() (clients, bytes int, err error) {
	s := m.coordinator.(*redisServer)
	a, err := s.info("clients")
	if err != nil {
		return 0, 0, err
	}
	b, err := s.info("memory")
	if err != nil {
		return 0, 0, err
	}
	clients, err = strconv.Atoi(a["connected_clients"])
	if err == nil {
		bytes, err = strconv.Atoi(b["used_memory"])
	}
	return clients, bytes, err
}

// times measures how long operations take one after the other.
func (m *meter) times(c *measured.Costs) error {
	cl, err := openDistlock(m.Addr(), ttl)
	if err != nil {
		return err
	}
	defer cl.close()
	var lock, unlock, sleep histogram
	for range 4000 {
		l := cl.mutex(freshName())
		start := time.Now()
		if err := l.lock(m); err != nil {
			return err
		}
		lock.add(time.Since(start))
		start = time.Now()
		if err := l.unlock(); err != nil {
			return err
		}
		unlock.add(time.Since(start))
	}
	for range 1000 {
		start := time.Now()
		time.Sleep(time.Millisecond)
		sleep.add(time.Since(start))
	}
	c.Lock, c.Unlock, c.SleepOne = micros(lock.quantile(.5)), micros(unlock.quantile(.5)), micros(sleep.quantile(.5))

	long := *m.rig
	long.time = 5 * time.Second
	wake, err := measureHandoff(&long, distlockDefault)
	if err != nil {
		return err
	}
	p50, _ := wake.get("p50-ms")
	c.Wake = 1000 * p50

	turns, err := m.best(time.Second/2, func(r *rig, c contender) (figures, error) {
		return measureTogether(r, c, job{Task: "contend", Goroutines: 1})
	})
	if err != nil {
		return err
	}
	c.WakeBusy = 1e6 / turns[0].value

	// Every 1024th hand-off asks Redis for more fences.
	passing, err := openDistlockPassing(m.Addr(), ttl)
	if err != nil {
		return err
	}
	defer passing.close()
	passes, err := m.best(time.Second/2, func(r *rig, _ contender) (figures, error) {
		t, err := contend(passing, freshName(), perProcess, r.time)
		if err != nil {
			return nil, err
		}
		return figures{{"acq/s", t.rate()}}, nil
	})
	if err != nil {
		return err
	}
	c.Pass = 1e6/passes[0].value - c.Lock/1024
	return nil
}

// contention measures the points of one lock that many want.
func (m *meter) contention(r *measured.Record) error {
	for _, x := range []struct {
		measure func(*rig, contender) (figures, error)
		time    time.Duration
		to      *measured.Point
	}{{measureProcesses, time.Second / 2, &r.Points.Processes}, {measureWaiters, 3 * time.Second, &r.Points.Waiters}} {
		f, err := m.best(x.time, x.measure)
		if err != nil {
			return err
		}
		get := func(name string) float64 { v, _ := f.get(name); return v }
		*x.to = measured.Point{Rate: get("acq/s"), P999MS: get("p99.9-ms"), LongestMS: get(longest), Commands: get("commands/acq")}
	}
	return nil
}

// best measures a few times, and returns the round with the greatest rate: the one that other programs
// disturbed least.
func (m *meter) best(d time.Duration, measure func(*rig, contender) (figures, error)) (best figures, err error) {
	r := *m.rig
	r.time = d
	for range 12 {
		f, err := measure(&r, distlockDefault)
		if err != nil {
			return nil, err
		}
		if best == nil || f[0].value > best[0].value {
			best = f
		}
	}
	return best, nil
}

// measureWaiters has clients in a few processes take turns with one lock.
func measureWaiters(r *rig, c contender) (figures, error) {
	return measureTogether(r, c, job{Task: "turns", Goroutines: waiters / processes})
}

const waiters = 256

// turnsInChild opens a client for each goroutine. Each holds the lock for 1 ms at a time.
func turnsInChild(j job, _ client, p *peer) error {
	c, err := contenderNamed(j.At, j.Contender)
	if err != nil {
		return err
	}
	clients := make([]client, j.Goroutines)
	for i := range clients {
		if clients[i], err = c.open(j.Addr, j.TTL); err != nil {
			return err
		}
		if err := warmUpAlone(clients[i]); err != nil {
			return err
		}
	}
	take := func(name string, hold time.Duration, d time.Duration) (*tally, error) {
		return during(d, j.Goroutines, func(ctx context.Context, g int, w *worker) error {
			return takeTurns(ctx, clients[g].mutex(name), hold, w)
		})
	}
	// Each client opens its connection for subscriptions.
	if _, err := take(j.Name+":"+strconv.Itoa(os.Getpid()), 0, time.Second); err != nil {
		return err
	}
	if err := p.ready(); err != nil {
		return err
	}
	t, err := take(j.Name, time.Millisecond, j.Time)
	if err != nil {
		return err
	}
	return p.say(t)
}

func takeTurns(ctx context.Context, l mutex, hold time.Duration, w *worker) error {
	for !w.over() {
		start := time.Now()
		if err := l.lock(ctx); err != nil {
			w.times.Max = max(w.times.Max, time.Since(start))
			return err
		}
		w.count(time.Since(start))
		if hold > 0 {
			time.Sleep(hold)
		}
		if err := l.unlock(); err != nil {
			return err
		}
	}
	return nil
}

// leases measures a client that holds many leases and does nothing else.
func (m *meter) leases(r *measured.Record) error {
	long := *m.rig
	if err := m.renewals(&measured.Costs{}); err != nil { // loads the script
		return err
	}
	long.leases, long.hold = 100_000, 65*time.Second
	f, err := measureLeasesBeside(&long, distlockDefault, 0)
	if err != nil {
		return err
	}
	get := func(name string) float64 { v, _ := f.get(name); return v }
	r.Points.Leases = measured.Point{
		Commands: get("commands/s"), ServerCPU: get("server-CPU-%"), ClientCPU: get("client-CPU-%"), TakenPerS: get("taken/s"),
	}
	return nil
}
