package record_test

import (
	"context"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/record"
	"github.com/distlock/distlock/internal/record/recordtest"
	"github.com/distlock/distlock/internal/testkit/exclusion"
)

// apart are speeds of clocks of which the fastest is 0.8 percent ahead of the slowest: a crystal's fault is a hundredth of that.
var apart = []float64{1, 1.004, 0.996, 1.002, 0.998}

// storm runs a storm in virtual time. defect, if there is one, stands between each client and the network.
func storm(t *testing.T, holds int, rates []float64, memory *recordtest.Memory, change func(*recordtest.Storm), defect func(record.Store) record.Store) (saw *exclusion.Checker) {
	synctest.Test(t, func(t *testing.T) {
		const ttl = time.Second
		var nets []*recordtest.Faults
		s := &recordtest.Storm{
			Clients: 6, Names: 3, Holds: holds, TTL: ttl, Seed: 1, Rates: rates,
			Open: func(client int, now func() time.Time) driver.Backend {
				net := recordtest.NewFaults(memory, uint64(client))
				net.Delay, net.Late, net.Rate = ttl/50, 3*ttl, 0.2
				nets = append(nets, net)
				store := record.Store(net)
				if defect != nil {
					store = defect(store)
				}
				return record.New(store, driver.Caps{Name: "memory", Floor: !memory.Stamps}).WithClock(now)
			},
		}
		if change != nil {
			change(s)
		}
		saw = s.Run(context.Background())
		for _, net := range nets {
			net.Wait()
		}
	})
	return saw
}

// No two clients hold at once, and fences rise, whatever becomes of messages, processes and clocks.
func TestStorm(t *testing.T) { storms(t, 3_000) }

func TestLongStorm(t *testing.T) { storms(t, 21_000) }

func storms(t *testing.T, holds int) {
	for name, change := range map[string]func(*recordtest.Memory){
		"counted": func(*recordtest.Memory) {},
		"stamped": func(m *recordtest.Memory) { m.Stamps = true },
		"aged":    func(m *recordtest.Memory) { m.Age = ages(100*time.Millisecond, 200*time.Millisecond) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := recordtest.NewMemory()
			change(m)
			storm(t, holds, apart, m, nil, nil).Judge(t, holds)
		})
	}
}

// ages is what a store says whose hosts' clocks are wrong by up to an error, and that takes so much off.
func ages(wrong, off time.Duration) func(time.Duration) time.Duration {
	return func(age time.Duration) time.Duration { return age + wrong - rand.N(2*wrong) - off }
}

// A storm that does not see as many holds as it wants ends with its context.
func TestStormEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		memory := recordtest.NewMemory()
		s := &recordtest.Storm{Clients: 3, Names: 2, Holds: 1 << 40, TTL: time.Second, Open: func(_ int, now func() time.Time) driver.Backend {
			return record.New(memory, driver.Caps{Name: "memory", Floor: true}).WithClock(now)
		}}
		s.Run(ctx).Judge(t, 10)
	})
}

// TestStormFindsDefects breaks one rule at a time.
func TestStormFindsDefects(t *testing.T) {
	for _, d := range []struct {
		name   string
		fault  string // what the checker says
		rates  []float64
		change func(*recordtest.Storm)
		defect func(record.Store) record.Store
		age    func(time.Duration) time.Duration
	}{
		{name: "clocks of the store are further apart than is taken off", fault: "while", age: ages(400*time.Millisecond, 200*time.Millisecond)},
		{name: "trust counts from the answer", fault: "while", change: func(s *recordtest.Storm) { s.LateTrust = true }},
		{name: "clocks are further apart than waiters allow for", fault: "while", rates: []float64{1, 1.05}},
		{name: "a hold is watched since its first version", fault: "while", defect: func(s record.Store) record.Store {
			return &versions{Store: s, real: map[string]string{}}
		}},
		{name: "a renewal is unconditional", fault: "while", defect: func(s record.Store) record.Store {
			return &writes{Store: s, last: map[string]string{}, change: func(w *writes, r, now record.Record) record.Record {
				if r.Holder != "" && r.Holder == w.last[r.Holder] {
					r.Version = now.Version
				}
				w.last[r.Holder] = r.Holder
				return r
			}}
		}},
		{name: "an Owner is taken for the proof of a write", fault: "while", defect: func(s record.Store) record.Store {
			return &proofs{Store: s, last: map[string]string{}}
		}},
		{name: "a release is unconditional", fault: "while", defect: func(s record.Store) record.Store {
			return &writes{Store: s, change: func(_ *writes, r, now record.Record) record.Record {
				if r.Holder == "" {
					r.Version = now.Version
				}
				return r
			}}
		}},
		{name: "a release drops the counter", fault: "with fence", defect: func(s record.Store) record.Store {
			return &writes{Store: s, change: func(_ *writes, r, _ record.Record) record.Record {
				if r.Holder == "" {
					r.Counter = 0
				}
				return r
			}}
		}},
	} {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(15) { // the rarest shows three times in a storm, by chance
				m := recordtest.NewMemory()
				m.Age = d.age
				faults := storm(t, 1_000, d.rates, m, func(s *recordtest.Storm) {
					s.Seed = seed
					if d.change != nil {
						d.change(s)
					}
				}, d.defect).Faults()
				if strings.Contains(strings.Join(faults, "\n"), d.fault) {
					t.Logf("%d faults", len(faults))
					return
				}
			}
			t.Error("not found")
		})
	}
}

// versions is a store whose versions stay the same while one Owner holds.
type versions struct {
	record.Store
	mu   sync.Mutex
	real map[string]string // by name
}

func (v *versions) Read(ctx context.Context, name string) (record.Record, error) {
	r, err := v.Store.Read(ctx, name)
	if err == nil && r.Holder != "" {
		v.mu.Lock()
		defer v.mu.Unlock()
		v.real[name], r.Version = r.Version, r.Holder
	}
	return r, err
}

func (v *versions) Write(ctx context.Context, name string, r record.Record) (record.Written, error) {
	v.mu.Lock()
	if strings.Contains(r.Version, "-") {
		r.Version = v.real[name]
	}
	v.mu.Unlock()
	return v.Store.Write(ctx, name, r)
}

// proofs is a store in which each record of an Owner has the token of the client's last write for it.
type proofs struct {
	record.Store
	mu   sync.Mutex
	last map[string]string // by Owner
}

func (p *proofs) Read(ctx context.Context, name string) (record.Record, error) {
	r, err := p.Store.Read(ctx, name)
	p.mu.Lock()
	defer p.mu.Unlock()
	if token := p.last[r.Holder]; token != "" {
		r.Token = token
	}
	return r, err
}

func (p *proofs) Write(ctx context.Context, name string, r record.Record) (record.Written, error) {
	if r.Holder != "" {
		p.mu.Lock()
		p.last[r.Holder] = r.Token
		p.mu.Unlock()
	}
	return p.Store.Write(ctx, name, r)
}

// writes is a store whose writes are changed, with what is there before them at hand.
type writes struct {
	record.Store
	mu     sync.Mutex
	last   map[string]string
	change func(w *writes, r, now record.Record) record.Record
}

func (w *writes) Write(ctx context.Context, name string, r record.Record) (record.Written, error) {
	now, err := w.Store.Read(ctx, name)
	if err != nil {
		return record.Written{}, err
	}
	w.mu.Lock()
	r = w.change(w, r, now)
	w.mu.Unlock()
	return w.Store.Write(ctx, name, r)
}
