package locktest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/claims"
)

// watched is a backend whose waiters are known.
type watched interface {
	driver.Backend
	driver.Watcher
	driver.Inspector
}

// SameAsClaims makes random attempts and releases by few owners, on each of many names, and compares every answer with
// that of package claims, and what Inspect shows in the end.
func SameAsClaims(t *testing.T, b watched, names int, end func(name, owner string)) {
	sameAsClaims(t, &model{b: b, end: end, changes: true}, names)
}

// SameAsClaimsOfOneMode is SameAsClaims with owners that keep to one mode.
func SameAsClaimsOfOneMode(t *testing.T, b watched, names int, end func(name, owner string)) {
	sameAsClaims(t, &model{b: b, end: end}, names)
}

func sameAsClaims(t *testing.T, of *model, names int) {
	for i := range names {
		name := fmt.Sprintf("same as claims %d", i)
		seed := rand.Uint64()
		m := &model{b: of.b, end: of.end, changes: of.changes, random: rand.New(rand.NewPCG(seed, 0)), name: name}
		since := time.Now()
		err := m.run(t.Context())
		// The turn of a first place that does not come ends in the database, and not in the model.
		if err != nil && time.Since(since) < driver.TurnLife/2 {
			t.Errorf("seed %d: %v\n%v", seed, err, m.done)
		}
	}
}

// model is one lock, as the backend has it and as it should be.
type model struct {
	b       watched
	end     func(name, owner string)
	changes bool // owners change their modes
	random  *rand.Rand
	name    string
	lock    claims.Lock
	fence   uint64
	done    []string
}

// mixes are the modes of the owners of one lock.
var mixes = [][]driver.Mode{
	{driver.Exclusive}, {driver.Write, driver.Read}, {driver.Write, driver.Read, driver.Read}, {driver.Counted},
	{driver.Exclusive, driver.Write, driver.Read, driver.Counted}, {driver.Read, driver.Counted, driver.Counted}, {driver.Exclusive, driver.Read},
}

// now is the time of all that happens to a model.
const now = int64(time.Hour)

func (m *model) run(ctx context.Context) error {
	modes := mixes[m.random.IntN(len(mixes))]
	var owners []driver.Request
	for i := range 5 {
		r := driver.Request{
			Hold:  driver.Hold{Name: m.name, Owner: driver.NewOwner(), Mode: modes[m.random.IntN(len(modes))], TTL: time.Hour},
			Limit: 2 + max(0, m.random.IntN(4)-2), Fences: 1,
		}
		if i%2 == 0 {
			r.Meta = map[string]string{"text": "\"mode\":2,\n\"ticket\":1 {\"owner\":\"" + r.Owner}
		}
		owners = append(owners, r)
	}
	if m.random.IntN(2) == 0 { // another way to the same answers
		w, err := m.b.Watch(ctx, driver.Request{Hold: driver.Hold{Name: m.name, Owner: driver.NewOwner(), Mode: modes[0], TTL: time.Hour}, Limit: 3, Fences: 1})
		if err != nil {
			return err
		}
		defer w.Close()
	}
	for range 16 {
		r := &owners[m.random.IntN(len(owners))]
		if m.random.IntN(10) == 0 {
			m.ends(r)
			continue
		}
		now := *r
		if m.changes && m.random.IntN(8) == 0 { // an owner changes its mind
			now.Mode = modes[m.random.IntN(len(modes))]
		}
		if err := m.step(ctx, now); err != nil {
			return err
		}
	}
	return m.compare(ctx)
}

// ends lets the owner's claim end. The owner of a place does not come back: whether it may go on with that is left open.
func (m *model) ends(r *driver.Request) {
	m.done = append(m.done, "end "+r.Owner[30:]+"\n")
	m.end(m.name, r.Owner)
	held := m.lock.Hold(r.Owner) != nil
	if m.lock.Remove(r.Owner) && !held {
		r.Owner = driver.NewOwner()
	}
}

// step makes one call of each.
func (m *model) step(ctx context.Context, r driver.Request) error {
	if m.random.IntN(3) == 0 {
		var want error
		if !m.lock.Remove(r.Owner) {
			want = driver.ErrLost
		}
		return m.same("release", r, m.b.Release(ctx, r.Hold), want)
	}
	r.Queue = m.random.IntN(3) > 0
	want := m.lock.Acquire(&r, claims.Claim{Fence: int64(m.fence + 1)}, now).Err
	g, err := m.b.Acquire(ctx, r)
	if err == nil && g.Fence <= m.fence {
		return fmt.Errorf("fence %d after %d", g.Fence, m.fence)
	}
	m.fence = max(m.fence, g.Fence)
	return m.same(fmt.Sprint("acquire ", r.Queue), r, err, want)
}

func (m *model) same(what string, r driver.Request, err, want error) error {
	m.done = append(m.done, fmt.Sprint(what, " ", r.Mode, " ", r.Owner[30:], ": ", want, "\n"))
	for _, kind := range []error{driver.ErrHeld, driver.ErrLost, driver.ErrInvalid, driver.ErrUnsupported} {
		if errors.Is(err, kind) != errors.Is(want, kind) {
			return fmt.Errorf("%s %v: %v; want %v", what, r.Mode, err, want)
		}
	}
	if (err == nil) != (want == nil) {
		return fmt.Errorf("%s %v: %v; want %v", what, r.Mode, err, want)
	}
	return nil
}

// compare compares the holders, in any order, and the queue.
func (m *model) compare(ctx context.Context) error {
	got, err := m.b.Inspect(ctx, m.name)
	if err != nil {
		return err
	}
	want := m.lock.Info(m.name, now)
	owners := func(list []driver.Holder) (all []string) {
		for _, h := range list {
			all = append(all, fmt.Sprint(h.Owner, h.Mode))
		}
		return all
	}
	holders, wanted := owners(got.Holders), owners(want.Holders)
	slices.Sort(holders)
	slices.Sort(wanted)
	if !slices.Equal(holders, wanted) || !slices.Equal(owners(got.Waiters), owners(want.Waiters)) {
		return fmt.Errorf("holders %v, queue %v; want %v, %v", holders, owners(got.Waiters), wanted, owners(want.Waiters))
	}
	return nil
}
