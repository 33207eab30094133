package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"
)

// handoffTimeout bounds a wait. A longer one is a failure.
const handoffTimeout = time.Minute

func handoff(at string, among []contender) scenario {
	return scenario{
		name: at + "/handoff", at: at, title: "Hand-off of a released lock to a waiter in another process",
		contenders: among, measure: measureHandoff,
	}
}

// otherWrites is the number of unrelated writes per second.
const otherWrites = 200

// amidWrites measures a scenario during unrelated writes.
func amidWrites(s scenario) scenario {
	measure := s.measure
	s.name += "-busy"
	s.title += fmt.Sprintf(", amid %d other writes a second", otherWrites)
	s.measure = func(r *rig, c contender) (figures, error) {
		stop, err := r.coordinator.(writer).write(time.Second / otherWrites)
		if err != nil {
			return nil, err
		}
		defer stop()
		return measure(r, c)
	}
	return s
}

// measureHandoff holds the lock, has another process wait for it, and releases it. The time runs from
// before the release until the other process has the lock, by the machine's clock.
func measureHandoff(r *rig, c contender) (figures, error) {
	return measureHandoffAfter(r, c, 5*time.Millisecond)
}

// measureHandoffAfter is measureHandoff after another process has waited for wait, and up to twice as long.
func measureHandoffAfter(r *rig, c contender, wait time.Duration) (figures, error) {
	const atLeast = 5
	cl, err := c.open(r.Addr(), ttl)
	if err != nil {
		return nil, err
	}
	defer cl.close()
	name := freshName()
	other, err := startChild(job{Task: "wait", Contender: c.name, At: r.at, Addr: r.Addr(), Name: name, TTL: ttl})
	if err != nil {
		return nil, err
	}
	defer other.kill()
	m := cl.mutex(name)
	if err := handOver(m, other, wait, nil); err != nil {
		return nil, err
	}
	var times histogram
	n := 0
	for end := time.Now().Add(r.time); n < atLeast || time.Now().Before(end); n++ {
		if err := handOver(m, other, wait, &times); err != nil {
			return nil, err
		}
	}
	return figures{
		{"p50-ms", millis(times.quantile(.5))},
		{"p99-ms", millis(times.quantile(.99))},
		{longest, millis(times.Max)},
		{"samples", float64(n)},
	}, nil
}

// handOver passes the lock to the other process, and waits until that has released it.
func handOver(m mutex, other *child, wait time.Duration, times *histogram) error {
	ctx, cancel := context.WithTimeout(context.Background(), handoffTimeout)
	defer cancel()
	if err := m.lock(ctx); err != nil {
		return err
	}
	if err := other.proceed(); err != nil {
		return err
	}
	// The other process now tries, and prepares to be woken. A part of the pause is random, so that no
	// polling falls into step.
	time.Sleep(wait + rand.N(wait))
	start := time.Now()
	if err := m.unlock(); err != nil {
		return err
	}
	var got time.Time
	if err := other.receive(&got); err != nil {
		return err
	}
	if times != nil {
		// got has lost its monotonic reading in the pipe, so this compares wall clock times.
		times.add(got.Sub(start))
	}
	if err := other.proceed(); err != nil {
		return err
	}
	return other.await()
}

// waitInChild repeatedly locks, and reports when it got the lock.
func waitInChild(j job, cl client, p *peer) error {
	m := cl.mutex(j.Name)
	if err := p.ready(); err != nil {
		return err
	}
	for {
		if err := takeOver(m, p); err != nil {
			return err
		}
		if err := p.ready(); err != nil {
			return err
		}
	}
}

func takeOver(m mutex, p *peer) error {
	ctx, cancel := context.WithTimeout(context.Background(), handoffTimeout)
	defer cancel()
	if err := m.lock(ctx); err != nil {
		return err
	}
	if err := p.say(time.Now()); err != nil {
		return err
	}
	if err := p.await(); err != nil {
		return err
	}
	return m.unlock()
}
