package redislock

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/faultproxy"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

var (
	seedFlag = flag.Uint64("seed", 0, "seed of the test with lost replies; 0 is another one each time")
	opsFlag  = flag.Int("ops", 10_000, "how many operations of each mode the long one has")
)

// fewOps is how many operations of each mode the short test with lost replies has.
const fewOps = 500

// stormRate is how many requests of the fuzz, or their answers, are lost.
const stormRate = 0.15

// fuzzed is a Backend, or a broken one.
type fuzzed interface {
	driver.Backend
	driver.Watcher
}

// fuzzer lets owners in several processes use one name while the network loses
// requests and answers, and knows after each call what the server's state may be.
type fuzzer struct {
	rnd      *rand.Rand
	modes    []driver.Mode
	fair     bool
	mixed    bool
	backends []fuzzed
	holds    [fuzzOwners]driver.Request
	worlds   worlds
	turns    map[int]time.Time // since when an owner's place may end, as the lock was kept for it
	fence    uint64            // the greatest so far
	unclear  int
	grants   int
	slowest  timed
}

// timed is a call and how long it took.
type timed struct {
	op
	backend int
	took    time.Duration
}

func (c timed) String() string {
	return fmt.Sprintf("%v, through client %d: %v", c.took, c.backend, c.op)
}

// fuzz makes so many calls. Then every owner retries its release until it is answered. fuzz
// returns the first answer that no state of the server explains.
func (f *fuzzer) fuzz(ctx context.Context, calls int, storm, calm func()) error {
	f.begin()
	storm()
	for done := 0; done < calls; {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("after %d calls, of which %d had no answer: %w; the slowest was %s", done, f.unclear, err, f.slowest)
		}
		ops := f.draw()
		if err := f.round(ctx, ops); err != nil {
			return fmt.Errorf("call %d: %w", done, err)
		}
		done += len(ops)
	}
	calm()
	for i := range f.holds {
		o := op{kind: opRelease, owner: i, mode: f.modes[0], answer: unclear}
		if f.mixed {
			o.mode = f.modes[i%len(f.modes)]
		}
		for o.answer == unclear && ctx.Err() == nil {
			o.err = f.call(ctx, &o, nil)
			o.answer = answerOf(o.err)
		}
		if f.worlds = f.possible().after(o); len(f.worlds) == 0 {
			return fmt.Errorf("at the end: %v", o)
		}
	}
	return ctx.Err()
}

// begin has nobody hold a fresh name.
func (f *fuzzer) begin() {
	f.worlds, f.turns = worlds{{}: true}, map[int]time.Time{}
	name := "fuzz:" + driver.NewOwner()
	for i := range f.holds {
		f.holds[i] = request(name, f.modes[0])
		f.holds[i].TTL = 10 * time.Hour // nothing ends by itself
	}
}

// draw chooses one to three calls by different owners.
func (f *fuzzer) draw() []op {
	var ops []op
	kinds := []opKind{opAcquire, opAcquire, opAcquire, opRenew, opRenew, opRelease, opRelease, opWatch}
	for _, owner := range f.rnd.Perm(fuzzOwners)[:1+f.rnd.IntN(3)] {
		o := op{kind: kinds[f.rnd.IntN(len(kinds))], owner: owner, mode: f.modes[f.rnd.IntN(len(f.modes))]}
		if f.mixed {
			o.mode = f.modes[owner%len(f.modes)]
		}
		if o.kind == opAcquire && f.worlds.may(owner, driver.Read) {
			o.mode = driver.Read // there are no upgrades
		}
		o.queue = f.fair && f.rnd.IntN(4) > 0 // others only try
		ops = append(ops, o)
	}
	return ops
}

// round makes calls side by side.
func (f *fuzzer) round(ctx context.Context, ops []op) error {
	grants, took := make([]driver.Grant, len(ops)), make([]time.Duration, len(ops))
	began := time.Now()
	var wg sync.WaitGroup
	for i := range ops {
		wg.Go(func() {
			start := time.Now()
			ops[i].err = f.call(ctx, &ops[i], &grants[i])
			took[i] = time.Since(start)
		})
	}
	wg.Wait()
	before, slow := f.possible(), time.Since(began) > driver.TurnLife/2
	for i := range ops {
		ops[i].answer = answerOf(ops[i].err)
		if took[i] > f.slowest.took {
			f.slowest = timed{ops[i], ops[i].owner % len(f.backends), took[i]}
		}
		if ops[i].answer == unclear {
			f.unclear++
		}
	}
	besideOthers(ops)
	if f.worlds = before.afterAll(ops, slow); len(f.worlds) == 0 {
		return fmt.Errorf("the holds may have been %v; then, in any order, %v", before, ops)
	}
	f.noteTurns(began, ops)
	f.renewOwners(ops)
	return f.checkFences(ops, grants)
}

// noteTurns notes whose places may end soon since a round began: a turn shortens the life of a place, until its owner asks for
// it again.
func (f *fuzzer) noteTurns(began time.Time, ops []op) {
	for _, o := range ops {
		if o.kind == opAcquire && o.queue && o.answer == held {
			delete(f.turns, o.owner)
		}
	}
	for owner := range fuzzOwners {
		if _, noted := f.turns[owner]; !f.worlds.queued(owner) {
			delete(f.turns, owner)
		} else if !noted && f.worlds.next(owner) {
			f.turns[owner] = began
		}
	}
}

// possible returns the worlds that are possible by now: a turn lasts for TurnLife, and a machine can stall for longer.
func (f *fuzzer) possible() worlds {
	var late []int
	for owner, since := range f.turns {
		if time.Since(since) > driver.TurnLife/2 {
			late = append(late, owner)
		}
	}
	if late == nil {
		return f.worlds
	}
	return f.worlds.withoutTurns(late...)
}

func (f *fuzzer) call(ctx context.Context, o *op, g *driver.Grant) (err error) {
	ctx, cancel := context.WithTimeout(ctx, tooLong)
	defer cancel()
	b, r := f.backends[o.owner%len(f.backends)], f.holds[o.owner]
	r.Mode, r.Queue = o.mode, o.queue
	switch o.kind {
	case opAcquire:
		*g, err = b.Acquire(ctx, r)
	case opRenew:
		err = b.Renew(ctx, []driver.Hold{r.Hold})[0]
	case opRelease:
		err = b.Release(ctx, r.Hold)
	case opWatch:
		var w driver.Watch
		if w, err = b.Watch(ctx, r); err == nil {
			w.Close()
		}
	}
	return err
}

// renewOwners gives callers that have ended a new Owner, as the core does.
func (f *fuzzer) renewOwners(ops []op) {
	for _, o := range ops {
		if o.kind == opRelease && f.worlds.gone(o.owner) {
			f.holds[o.owner].Owner = driver.NewOwner()
		}
	}
}

func (f *fuzzer) checkFences(ops []op, grants []driver.Grant) error {
	before := f.fence
	var seen []uint64
	for i, o := range ops {
		if o.kind != opAcquire || o.answer != yes {
			continue
		}
		fence := grants[i].Fence
		if fence <= before || slices.Contains(seen, fence) {
			return fmt.Errorf("fence %d after %d, beside %v", fence, before, seen)
		}
		seen = append(seen, fence)
		f.fence = max(f.fence, fence+grants[i].Fences-1)
		f.grants++
	}
	return nil
}

// fuzzCase is a kind of lock.
type fuzzCase struct {
	layout     Layout
	modes      []driver.Mode
	fair       bool // most refused owners are queued
	mixed      bool // each owner has a mode of its own
	scriptless int  // so many of the backends use no scripts
}

func (c fuzzCase) String() string {
	name := fmt.Sprint(c.layout, " ", c.modes)
	if c.fair {
		name += " fair"
	}
	if c.mixed {
		name += " mixed"
	}
	if c.scriptless > 0 {
		name += fmt.Sprintf(" %d scriptless", c.scriptless)
	}
	return strings.ToLower(strings.NewReplacer("[", "", "]", "").Replace(name))
}

var (
	stringMutex   = fuzzCase{layout: String, modes: []driver.Mode{driver.Exclusive}}
	redissonMutex = fuzzCase{layout: Redisson, modes: []driver.Mode{driver.Exclusive}}
	readWrite     = fuzzCase{layout: String, modes: []driver.Mode{driver.Write, driver.Read}}
	fairMutex     = fuzzCase{layout: String, modes: []driver.Mode{driver.Exclusive}, fair: true}
	fairReadWrite = fuzzCase{layout: String, modes: []driver.Mode{driver.Write, driver.Read}, fair: true}
	mixedKinds    = fuzzCase{layout: String, modes: []driver.Mode{driver.Exclusive, driver.Read, driver.Counted}, fair: true, mixed: true}
	javaReadWrite = fuzzCase{layout: Redisson, modes: []driver.Mode{driver.Write, driver.Read}}
	semaphore     = fuzzCase{layout: String, modes: []driver.Mode{driver.Counted}}
	javaSemaphore = fuzzCase{layout: Redisson, modes: []driver.Mode{driver.Counted}}
)

var fuzzCases = []fuzzCase{
	{layout: String, modes: []driver.Mode{driver.Exclusive}},
	{layout: Redisson, modes: []driver.Mode{driver.Exclusive}},
	{layout: String, modes: []driver.Mode{driver.Read}},
	{layout: String, modes: []driver.Mode{driver.Write, driver.Read}},
	{layout: Redisson, modes: []driver.Mode{driver.Write, driver.Read}},
	{layout: String, modes: []driver.Mode{driver.Counted}},
	{layout: Redisson, modes: []driver.Mode{driver.Counted}},
	{layout: String, modes: []driver.Mode{driver.Exclusive}, fair: true},
	{layout: Redisson, modes: []driver.Mode{driver.Exclusive}, fair: true},
	fairReadWrite,
	{layout: String, modes: []driver.Mode{driver.Write, driver.Read, driver.Read}, fair: true, mixed: true},
	{layout: String, modes: []driver.Mode{driver.Counted}, fair: true},
	mixedKinds,
	{layout: String, modes: []driver.Mode{driver.Exclusive}, scriptless: 3},
	{layout: String, modes: []driver.Mode{driver.Exclusive}, scriptless: 2},
}

// startFuzz runs one case against a server of its own, and returns what was wrong.
func startFuzz(t *testing.T, c fuzzCase, seed uint64, calls int, change func(*Backend) fuzzed) (*fuzzer, error) {
	srv := testserver.Redis(t)
	f := &fuzzer{rnd: rand.New(rand.NewPCG(seed, 1)), modes: c.modes, fair: c.fair, mixed: c.mixed}
	var proxies []*faultproxy.Proxy
	for i, o := range []opener{openers[0], openers[1], openers[0]} {
		p := faultproxy.New(t, srv.Addr())
		proxies = append(proxies, p)
		opts := Options{Layout: c.layout}
		if i < c.scriptless {
			opts.Scripts = ScriptsOff
		}
		f.backends = append(f.backends, change(o.open(t, p.Addr(), opts)))
	}
	setRate := func(rate float64) {
		for i, p := range proxies {
			// Not the greetings of new connections: go-redis waits 0.1 s after one that failed.
			p.Storm(seed+uint64(i), rate, "fuzz:")
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	if err := f.fuzz(ctx, calls, func() { setRate(stormRate) }, func() { setRate(0) }); err != nil {
		return f, err
	}
	for _, b := range f.backends {
		b.Close()
	}
	return f, leftovers(t, srv, f.holds[0].Name)
}

// leftovers finds keys that stay, other than the fence counters and, for Java's sake, a
// semaphore's number of permits.
func leftovers(t *testing.T, srv *testserver.RedisServer, name string) error {
	var keys []string
	for _, key := range allKeys(t, srv) {
		if strings.Contains(key, "fence") || strings.HasPrefix(key, "redisson_lock_token:") {
			continue
		}
		n, err := srv.Do("GET", key)
		if key == name && err == nil && n == fmt.Sprint(fuzzLimit) {
			continue
		}
		keys = append(keys, key)
	}
	if len(keys) > 0 {
		return fmt.Errorf("keys that stay after all was released: %q", keys)
	}
	return nil
}

func fuzzSeed(t *testing.T) uint64 {
	seed := *seedFlag
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("seed %d: repeat with -seed", seed)
	return seed
}

// The network loses one in seven requests or answers: no client gets a wrong answer, and no keys
// are left behind.
func TestLostReplies(t *testing.T) { loseReplies(t, fewOps, 10) }

func TestLongLostReplies(t *testing.T) { loseReplies(t, *opsFlag, *opsFlag/20) }

// loseReplies fails unless at least enough calls are granted, and as many have an unknown outcome.
func loseReplies(t *testing.T, ops, enough int) {
	seed := fuzzSeed(t)
	sideBySide(t, fuzzCases, func(t *testing.T, c fuzzCase) {
		f, err := startFuzz(t, c, seed, ops, func(b *Backend) fuzzed { return b })
		t.Logf("%d calls: %d granted, %d with an unknown outcome", ops, f.grants, f.unclear)
		if err != nil {
			t.Error(err) // and the rest of the calls was not made
		} else if f.grants < enough || f.unclear < enough {
			t.Error("the test was not hard enough")
		}
	})
}

// The model knows that a turn shortens a place's life, also if the place may no longer hold: a machine may stall for that long
// between two calls.
func TestPlacesEndAfterTurns(t *testing.T) {
	t.Parallel()
	b, _ := stringOf(t)
	f := &fuzzer{modes: fairReadWrite.modes, backends: []fuzzed{b}}
	f.begin()
	call := func(kind opKind, owner int, mode driver.Mode, queue bool, want outcome) {
		t.Helper()
		ops := []op{{kind: kind, owner: owner, mode: mode, queue: queue}}
		must.OK(t, f.round(t.Context(), ops))
		if ops[0].answer != want {
			t.Errorf("%v, want %s", ops[0], want)
		}
	}
	call(opAcquire, 0, driver.Read, true, yes)
	call(opAcquire, 1, driver.Write, true, held)
	call(opAcquire, 2, driver.Read, true, held)
	call(opAcquire, 3, driver.Read, true, held)
	call(opRelease, 1, driver.Write, false, yes)
	call(opAcquire, 4, driver.Write, false, held) // begins the turns of the readers
	call(opAcquire, 2, driver.Write, true, held)  // and from now on the other one waits for this
	call(opRelease, 0, driver.Read, false, yes)
	call(opAcquire, 2, driver.Write, true, yes)
	eventually(t, "the reader's place ends", func() bool {
		return len(must.Get(b.Inspect(t.Context(), f.holds[0].Name))(t).Waiters) == 0
	})
	call(opRelease, 2, driver.Write, false, yes)
	call(opAcquire, 4, driver.Write, false, yes)
}
