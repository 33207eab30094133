// Package drivertest is the conformance suite for backends. Where the comments of package driver
// leave a question open, the suite is the specification.
//
// A backend's test of lock semantics is six lines:
//
//	func TestConformance(t *testing.T) {
//		drivertest.Run(t, drivertest.Harness{
//			Open: func(ctx context.Context) (driver.Backend, error) { return mylock.Open(ctx, url) },
//		})
//	}
//
// Each [Check] is one promise. It uses two connections that know nothing of each other, like two
// processes. It returns an error with the broken promise and the answer that broke it, so the suite
// also runs without package testing, against a live store.
//
// # What a check relies on
//
//   - Names of locks begin with "drivertest" and a random part, so concurrent runs and other users of
//     the store are not disturbed. (The check names/start puts a few other characters in front.) A
//     check releases what it takes.
//   - The claims in a backend's Caps are proven. Features that it does not claim must be refused with
//     driver.ErrUnsupported if a request can ask for them: modes, places in the queue, a downgrade,
//     revocation. Other checks return [ErrNotClaimed].
//   - A backend with Caps.Session need not end single holds: the suite closes a connection where it
//     would otherwise wait for a TTL. With Caps.Observed a hold has ended when a connection that watched it has taken the
//     lock.
//   - Lower bounds of times are exact, upper ones generous. Where a slow machine may have let a hold
//     end, the check repeats with a longer TTL before it reports a broken promise. Under Run, beside others, it also repeats
//     after a call without an answer.
//
// # Tests of the checks
//
// The tests of this package break a backend in over a hundred ways, one defect each, and show that
// the check for it finds it. There is no check without such a defect.
package drivertest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/distlock/distlock/driver"
)

// ErrNotClaimed is a check's result if the backend does not claim the feature that the check is
// about, and properly refuses requests for it.
var ErrNotClaimed = errors.New("drivertest: not claimed by this backend")

// Harness tells the suite how to reach one store. Only Open is needed.
type Harness struct {
	// Open makes a new, independent connection to the same store, as another process would
	// have. It is called from several goroutines at once. The suite closes the connection.
	Open func(ctx context.Context) (driver.Backend, error)

	// TTL is the TTL of holds that are left to expire. 0: 300 ms, or Caps.MinTTL if that is more.
	TTL time.Duration

	// Slack is how late an expiry or a signal may come on a loaded machine. It costs time only
	// if a backend is late. 0: 30 s, under Run 2 minutes, or TTL if that is more.
	Slack time.Duration

	// Timeout bounds one check, and each of its modes if Serial. 0: 60 s and 40 TTLs; under Run 12 minutes
	// more, since go test has a time limit of its own and shares the machine with other packages.
	Timeout time.Duration

	// Parallel is how many checks run at once under Run. 0: 8.
	Parallel int

	// Serial runs the modes of a check one after the other. Then a check has at most two
	// connections open at once; otherwise two for each mode.
	Serial bool

	// Holds is how many locks renew/big-batch, and a check of names, holds at once on one
	// connection, for a backend to which each costs a connection of a server. 0: up to 200.
	Holds int

	// KindsApart says that locks have another library's form, which may keep kinds of lock apart: an attempt as
	// another kind than the one in use may be ErrInvalid. Otherwise it waits in the one queue of its name.
	KindsApart bool

	// Cut cuts one connection, made by Open, off from its store: its calls get no answer, as
	// behind a broken network, until restore is called. nil: checks that need it answer ErrNotClaimed.
	Cut func(b driver.Backend) (restore func())

	// LoseAnswers lets all requests of one connection, made by Open, arrive, and ends its connections to the store when
	// an answer comes, until restore is called. nil: checks that need it answer ErrNotClaimed.
	LoseAnswers func(b driver.Backend) (restore func())

	// Withdraw takes the login or the rights of all connections that Open makes away at the store, and cuts
	// those that are there, until restore is called. Nobody else may use the store as that user meanwhile:
	// see RunRefused. nil: checks that need it answer ErrNotClaimed.
	Withdraw func() (restore func())

	// Except names checks that Run does not fail for: what the backend can't promise, or does not keep yet.
	Except []string

	// Refuses says which names the store can't have: the backend must answer them with
	// ErrInvalid, and nothing else. nil: none.
	Refuses func(name string) bool

	// extra is added to the default of Timeout.
	extra time.Duration

	// caps returns the Caps that the checks of one Run share.
	caps func() (driver.Caps, error)
}

// Check is one promise of a backend.
type Check struct {
	Name    string // subject and promise: "release/only-by-owner"
	Promise string // one sentence for people

	// Run tries the promise on the store. nil: kept. ErrNotClaimed: not made. Any other error
	// names the broken promise and wraps the backend's error. Run returns when ctx ends or
	// Harness.Timeout has passed, even if the backend hangs, and leaves no holds behind.
	Run func(ctx context.Context, h *Harness) error
}

// errSlow means that a hold may rightly have ended before the check looked.
var errSlow = errors.New("drivertest: machine or store too slow for Harness.TTL; give a longer one")

// errNoAnswer means that a call had no answer, which breaks no promise unless it never has: a busy machine may give none in time, and
// a cluster may be electing a leader.
var errNoAnswer = errors.New("drivertest: no answer, again and again")

// slowCall is how long a call takes that had no answer because of the machine, without Run.
const slowCall = 200 * time.Millisecond

// busy is how much longer than alone a check may take under Run, beside others.
const busy = 12 * time.Minute

// config is a Harness with its defaults applied.
type config struct {
	Harness
	caps driver.Caps
}

// applyDefaults applies the defaults, which depend on the backend's capabilities.
func (h *Harness) applyDefaults(ctx context.Context, calls *activity) (config, error) {
	defer calls.begin("Open and Close")()
	readCaps := h.caps
	if readCaps == nil {
		readCaps = func() (driver.Caps, error) { return h.readCaps(ctx) }
	}
	caps, err := readCaps()
	if err != nil {
		return config{}, err
	}
	c := config{Harness: *h, caps: caps}
	c.TTL = cmp.Or(c.TTL, max(300*time.Millisecond, c.caps.MinTTL))
	c.Slack = cmp.Or(c.Slack, max(30*time.Second, c.TTL, c.extra/6))
	c.Timeout = cmp.Or(c.Timeout, time.Minute+40*c.TTL+c.extra)
	return c, nil
}

// readCaps opens a connection for its Caps.
func (h *Harness) readCaps(ctx context.Context) (driver.Caps, error) {
	if h.Open == nil {
		return driver.Caps{}, errors.New("drivertest: Harness.Open is nil")
	}
	b, err := h.openAtLast(ctx)
	if err != nil {
		return driver.Caps{}, fmt.Errorf("drivertest: open: %w", err)
	}
	caps := b.Caps()
	if err := b.Close(); err != nil {
		return driver.Caps{}, fmt.Errorf("drivertest: close: %w", err)
	}
	return caps, nil
}

// openAtLast is Open, under Run again after an error that is no fact: a busy store may refuse a connection.
func (h *Harness) openAtLast(ctx context.Context) (driver.Backend, error) {
	b, err := h.Open(ctx)
	long := min(h.extra/6, cmp.Or(h.Timeout, h.extra)/4)
	for began := time.Now(); isUnknown(err) && ctx.Err() == nil && time.Since(began) < long; {
		time.Sleep(10 * time.Millisecond)
		b, err = h.Open(ctx)
	}
	return b, err
}

// modes returns the claimed modes.
func (c config) modes() []driver.Mode {
	var modes []driver.Mode
	for m := driver.Exclusive; m <= driver.Counted; m++ {
		if c.caps.Modes.Has(m) {
			modes = append(modes, m)
		}
	}
	return modes
}

// alone returns a claimed mode that excludes all others.
func (c config) alone() driver.Mode {
	if c.caps.Modes.Has(driver.Write) && !c.caps.Modes.Has(driver.Exclusive) {
		return driver.Write
	}
	return driver.Exclusive
}

// long returns the TTL of holds that must not end by themselves.
func (c config) long() time.Duration {
	d := max(2*time.Minute, 2*c.Timeout)
	if c.caps.MaxTTL > 0 {
		d = min(d, c.caps.MaxTTL)
	}
	return d
}

// cleanupTime bounds what a check does after its end to leave nothing behind.
const cleanupTime = 5 * time.Second

// openTime bounds the first connection, if Harness.Timeout does not.
const openTime = 30 * time.Second

// activity records the calls in flight, to name the one that hangs.
type activity struct {
	mu    sync.Mutex
	calls map[*string]struct{}
}

func (a *activity) begin(call string) (end func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.calls == nil {
		a.calls = map[*string]struct{}{}
	}
	a.calls[&call] = struct{}{}
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.calls, &call)
	}
}

func (a *activity) String() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var calls []string
	for c := range maps.Keys(a.calls) {
		calls = append(calls, *c)
	}
	slices.Sort(calls)
	return strings.Join(slices.Compact(calls), ", ")
}
