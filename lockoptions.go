package distlock

import (
	"fmt"
	"maps"
	"time"
	"unicode/utf8"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/renew"
)

// LockOption changes an option of one lock.
type LockOption struct{ apply func(*spec) }

// WithTTL sets the TTL of this lock; see Options.TTL.
func WithTTL(ttl time.Duration) LockOption {
	return LockOption{func(s *spec) { s.terms.TTL = ttl }}
}

// WithoutRenewal makes the lease a fixed one: it ends by itself after its TTL, less the margin, and
// only Extend and Downgrade prolong it. It is for work of known length that must not keep the lock if it hangs.
// Other processes get the lock when the TTL is over, also where holds share the life of a session
// (Caps.Session) and other holds of the session are renewed.
func WithoutRenewal() LockOption {
	return LockOption{func(s *spec) { s.terms.Fixed = true }}
}

// Fair makes callers first come, first served over all processes. Each waiter then has a place of its
// own in the backend's queue, where a process without Fair has one for all its callers, and nothing is
// handed off inside the process: fair is slower. It is ErrUnsupported if the backend keeps no queue
// (Caps.Queueing).
func Fair() LockOption {
	return LockOption{func(s *spec) { s.fair = true }}
}

// Reentrant lets a Lock succeed at once, under the same hold, if its context descends from a
// lease's context of the same lock with a mode that covers it. The hold ends when it was unlocked
// as often as it was locked.
func Reentrant() LockOption {
	return LockOption{func(s *spec) { s.reentrant = true }}
}

// WaitAtMost bounds the wait for this lock, and nothing else: in Do the work may take longer. The
// error of a wait that it ends matches context.DeadlineExceeded and the last answer of the backend.
// Default: no bound but ctx.
func WaitAtMost(d time.Duration) LockOption {
	return LockOption{func(s *spec) { s.waitAtMost, s.waitAtMostSet = d, true }}
}

// WithoutHandoff keeps this lock from being handed off inside the process: each lease is requested
// from the backend, under a fence of its own. Default: Options.HandoffMax and HandoffWindow.
func WithoutHandoff() LockOption {
	return LockOption{func(s *spec) { s.noHandoff = true }}
}

// MaxHold ends the lease, as if it were lost, after it was held for d, so that a stuck holder is
// not renewed for ever. Other processes get the lock at most one TTL later. Each lease has the full
// d, also after a hand-off inside this process; re-entered leases share the d of the first.
// Default: Options.MaxHold.
func MaxHold(d time.Duration) LockOption {
	return LockOption{func(s *spec) { s.terms.MaxHold, s.maxHoldSet = d, true }}
}

// MinHold keeps the lock from others until d after its grant, even if it is unlocked sooner and the
// process then ends: a short job is not run again at once by a host whose clock is behind.
//
// Unlock does not wait for it: the client goes on renewing the hold and releases it when d is over. If the
// TTL would end the hold before, Unlock prolongs it, and returns ErrUnavailable if that was not confirmed:
// then the lock may end sooner if the process does. Client.Close leaves such a hold to its TTL.
//
// Where holds end with a session (Caps.Session: ZooKeeper, and locks of a database connection),
// nothing outlives the session. There Client.Close waits until d is over, and a program that ends without
// Close keeps the lock for what is left of its session, which is a TTL at most, and nothing where the
// session is a connection.
//
// A process that dies before it unlocks keeps the lock for its TTL, and for MinHold if it was taken without
// a wait (TryLock, TryDo) and holds end with no session. One that loses the lock keeps nothing. MinHold is
// ErrInvalid if it is more than MaxHold, or than the TTL with WithoutRenewal, and ErrUnsupported where holds end only for
// those who watch them (Caps.Observed without Caps.Late).
func MinHold(d time.Duration) LockOption {
	return LockOption{func(s *spec) { s.minHold = d }}
}

// Revocable calls f, in a goroutine of its own and at most once for a lease, when another program
// requests the release: by Client.Revoke, by distlock unlock --ask, or as the coordinator's other
// users do. It is only a request: the lease lives on until Unlock, which then releases the lock to
// the backend and hands it off to no waiter of this process. f may be called before Lock has
// returned, and while Unlock is called. Revocable is ErrUnsupported if the backend has no such
// requests (Caps.Revocable).
func Revocable(f func(*Lease)) LockOption {
	return LockOption{func(s *spec) { s.revoked = f }}
}

// WithMeta adds to the metadata, UTF-8, that Inspect shows for this lock.
func WithMeta(meta map[string]string) LockOption {
	return LockOption{func(s *spec) {
		merged := maps.Clone(s.meta)
		maps.Copy(merged, meta)
		s.meta, s.ownMeta = merged, true
	}}
}

// spec is a lock's name and all its options. A process may hold very many locks: those without options of
// their own share their terms.
type spec struct {
	name string
	*lockTerms
	bad error // the error of check
}

// lockTerms are all options of a lock. They do not change once its spec is made.
type lockTerms struct {
	mode          Mode
	limit         int
	terms         renew.Terms
	fair          bool
	reentrant     bool
	noHandoff     bool
	waitAtMost    time.Duration
	waitAtMostSet bool
	maxHoldSet    bool
	minHold       time.Duration
	revoked       func(*Lease)
	meta          map[string]string
	ownMeta       bool

	// What follows from them.
	alone  bool   // a hold excludes every other hold
	queued bool   // waiters have a queue at the backend
	fences uint64 // that are wanted
}

// canTakeOver reports whether a hold taken for o may be handed off to a waiter with s.
func (s *spec) canTakeOver(o *spec) bool {
	if s == o {
		return s.canHandOff()
	}
	return s.canHandOff() && o.canHandOff() && s.sameRequest(o) && s.terms.Margin == o.terms.Margin && s.terms.MaxHold == o.terms.MaxHold &&
		s.revoked == nil && o.revoked == nil
}

// canHandOff reports whether a hold can be handed off at all: it is not shared, and no option ties
// it to one lease.
func (t *lockTerms) canHandOff() bool {
	return t.alone && !t.terms.Fixed && !t.fair && !t.noHandoff && t.minHold == 0
}

// sameRequest reports whether a request for o may be continued for s: everything that the
// coordinator may have recorded is the same.
func (s *spec) sameRequest(o *spec) bool {
	return s == o || s.mode == o.mode && s.limit == o.limit && s.terms.TTL == o.terms.TTL && s.terms.Fixed == o.terms.Fixed &&
		(s.revoked == nil) == (o.revoked == nil) && !s.ownMeta && !o.ownMeta
}

// check returns what is wrong with a lock's name or options on this backend.
func (s *spec) check(caps driver.Caps) error {
	if err := checkName(s.name); err != nil {
		return err
	}
	if err := s.checkTimes(caps); err != nil {
		return err
	}
	if s.ownMeta {
		if err := checkMeta(s.meta); err != nil {
			return err
		}
	}
	switch {
	case !caps.Modes.Has(s.mode):
		return fmt.Errorf("%w: %s can't do %s locks (it can: %s)", ErrUnsupported, caps.Name, s.mode, caps.Modes)
	case s.mode == Counted && s.limit < 1:
		return invalid("a semaphore of %d permits; want at least 1", s.limit)
	case s.fair && caps.QueueingOf(s.mode) == driver.QueueNever:
		return fmt.Errorf("%w: %s locks can't be fair at %s: their waiters have no queue there", ErrUnsupported, s.mode, caps.Name)
	case s.revoked != nil && !caps.Revocable.Has(s.mode):
		return fmt.Errorf("%w: %s can't request the release of %s locks, so that they can't be Revocable", ErrUnsupported, caps.Name, s.mode)
	}
	return nil
}

func (s *spec) checkTimes(caps driver.Caps) error {
	if err := s.checkGreatest(); err != nil {
		return err
	}
	switch {
	case s.terms.TTL <= 0:
		return invalid("TTL %v; want more than 0", s.terms.TTL)
	case s.terms.TTL < caps.MinTTL:
		return invalid("TTL %v is below the minimum of %s, %v", s.terms.TTL, caps.Name, caps.MinTTL)
	case caps.MaxTTL > 0 && s.terms.TTL > caps.MaxTTL:
		return invalid("TTL %v is above the maximum of %s, %v", s.terms.TTL, caps.Name, caps.MaxTTL)
	case s.terms.Margin < 0 || s.terms.Margin >= s.terms.TTL:
		return invalid("margin %v; want it between 0 and the TTL, %v", s.terms.Margin, s.terms.TTL)
	case s.maxHoldSet && s.terms.MaxHold <= 0:
		return invalid("MaxHold %v; want more than 0", s.terms.MaxHold)
	case s.waitAtMostSet && s.waitAtMost <= 0:
		return invalid("WaitAtMost %v; want more than 0 (TryLock does not wait)", s.waitAtMost)
	case s.minHold < 0:
		return invalid("MinHold %v; want no negative time", s.minHold)
	case s.minHold > 0 && !caps.Ends():
		return fmt.Errorf("%w: holds in %s end for those who have watched them for their TTL and for nobody else, so there is no MinHold and no Cron, "+
			"which rely on the end of a hold whose process is gone; wait for the lock for longer than its TTL instead", ErrUnsupported, caps.Name)
	case s.minHold > caps.Longest() && !caps.Session:
		return invalid("MinHold %v is above the maximum of %s, %v", s.minHold, caps.Name, caps.Longest())
	case s.terms.MaxHold > 0 && s.minHold > s.terms.MaxHold:
		return invalid("MinHold %v is more than MaxHold %v", s.minHold, s.terms.MaxHold)
	case s.terms.Fixed && s.minHold > s.terms.TTL:
		return invalid("MinHold %v is more than the TTL of a lease that is not renewed, %v", s.minHold, s.terms.TTL)
	}
	return nil
}

// checkGreatest refuses times that would overflow in sums.
func (s *spec) checkGreatest() error {
	for _, o := range [...]struct {
		name string
		d    time.Duration
	}{
		{"TTL", s.terms.TTL}, {"margin", s.terms.Margin}, {"CallTimeout", s.terms.CallTimeout},
		{"MaxHold", s.terms.MaxHold}, {"MinHold", s.minHold},
	} {
		if o.d > driver.MaxTTL {
			return invalid("%s %v; want at most %v", o.name, o.d, driver.MaxTTL)
		}
	}
	return nil
}

// checkMeta refuses what would not come back as it was given: most backends store JSON.
func checkMeta(meta map[string]string) error {
	for key, value := range meta {
		if !utf8.ValidString(key) || !utf8.ValidString(value) {
			return invalid("the metadata %s is not UTF-8", driver.Quote(key))
		}
	}
	return nil
}

func checkName(name string) error {
	switch {
	case name == "":
		return invalid("the lock's name is empty")
	case !utf8.ValidString(name):
		return invalid("the lock's name is not UTF-8: %s", driver.Quote(name))
	}
	for i := range len(name) {
		if name[i] == 0 {
			return invalid("the lock's name has a NUL byte: %s", driver.Quote(name))
		}
	}
	return nil
}
