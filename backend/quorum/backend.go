package quorum

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/members"
)

// Options configure a Backend. The zero value means the defaults.
type Options struct {
	// Name is the name in Caps. It must be the same in every process. The default consists of
	// the members' names in alphabetical order.
	Name string

	// MemberTimeout bounds one call to one member. The quorum decides without a member that
	// is silent for longer. Zero means an eighth of the TTL, at least 50 ms and at most 1 s.
	MemberTimeout time.Duration
}

const (
	// A member's clock may run a hundredth faster than the caller's: requests to
	// members have the TTL and a hundredth of it, and driftFloor for clocks that count milliseconds.
	driftParts = 100
	driftFloor = 2 * time.Millisecond

	shortestTimeout = 50 * time.Millisecond
	longestTimeout  = time.Second
)

// Backend takes locks at a majority of its members. It is safe for concurrent use.
type Backend struct {
	members  []*member
	majority int
	opts     Options
	caps     driver.Caps
	holds    grantedHolds

	admission chan struct{} // full while a member is compared with the others

	calls *members.Calls
	life  context.Context // of all calls to members; ends later than calls.Life
	end   context.CancelFunc
	close func() error
}

var (
	_ driver.Backend   = (*Backend)(nil)
	_ driver.Watcher   = (*Backend)(nil)
	_ driver.Inspector = (*Backend)(nil)
)

// New makes one backend from independent members. Close closes them. If New fails, they remain
// the caller's.
//
// Any number of members is allowed. None of 1 or 2 may fail, one of 3 or 4, two of 5: so an even
// number costs a member and gains nothing. Two members with one name are ErrInvalid, since one
// server must not have two votes. So are two that say that they are one server (driver.Identifier), as far
// as they answer within a second. The others are compared when they answer for the first time: until then they
// have no vote.
func New(backends []driver.Backend, opts *Options) (*Backend, error) {
	names := make([]string, len(backends))
	var caps []driver.Caps
	for i, m := range backends {
		if m == nil {
			return nil, fmt.Errorf("%w: quorum: member %d is nil", driver.ErrInvalid, i+1)
		}
		caps = append(caps, m.Caps())
		names[i] = caps[i].Name
	}
	return assemble(context.Background(), backends, names, caps, opts)
}

// assemble is like New, with the members' names, and the Caps of those that are reachable.
func assemble(ctx context.Context, backends []driver.Backend, names []string, caps []driver.Caps, opts *Options) (*Backend, error) {
	o, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("%w: quorum: no members: want 3 or 5", driver.ErrInvalid)
	}
	if err := checkUnique(names); err != nil {
		return nil, err
	}
	b := &Backend{majority: len(names)/2 + 1, opts: o, calls: members.NewCalls("quorum"), admission: make(chan struct{}, 1)}
	for i, m := range backends {
		b.members = append(b.members, &member{Member: members.Member{Backend: m, Name: names[i]}})
	}
	if err := b.identify(ctx); err != nil {
		return nil, err
	}
	b.life, b.end = context.WithCancel(context.Background())
	b.close = sync.OnceValue(b.closeAll)
	b.caps = b.merge(caps)
	b.caps.Name = cmp.Or(o.Name, "quorum("+strings.Join(slices.Sorted(slices.Values(names)), " ")+")")
	return b, nil
}

// checkUnique returns ErrInvalid if two members are the same server.
func checkUnique(names []string) error {
	seen := map[string]bool{}
	for _, name := range names {
		for _, keys := range []string{"?layout=", "?prefix="} { // by which redislock tells its locks on one server apart
			name, _, _ = strings.Cut(name, keys)
		}
		if seen[name] {
			return fmt.Errorf("%w: quorum: %s is a member twice; one server must not have two votes", driver.ErrInvalid, name)
		}
		seen[name] = true
	}
	return nil
}

func (o *Options) withDefaults() (Options, error) {
	if o == nil {
		o = &Options{}
	}
	s := *o
	if s.MemberTimeout < 0 {
		return s, fmt.Errorf("%w: quorum: MemberTimeout %v: want a positive duration, or 0 for the default", driver.ErrInvalid, s.MemberTimeout)
	}
	return s, nil
}

// merge returns the capabilities of a majority of members with these Caps.
func (b *Backend) merge(all []driver.Caps) driver.Caps {
	c, sessions := members.Intersect(all), 0
	for _, m := range all {
		if m.Session {
			sessions++
		}
	}
	c.Modes &= driver.Modes(driver.Exclusive)
	c.Downgrade = false
	c.Fence = c.Fence && c.Floor // the second round is a Floor
	c.Queueing, c.QueuedModes, c.Revocable = driver.QueueNever, 0, 0
	c.Session = sessions > len(b.members)-b.majority
	if c.MaxTTL > 0 {
		c.MaxTTL = (c.MaxTTL - driftFloor) / (driftParts + 1) * driftParts
	}
	return c
}

// Caps returns the common capabilities of all members, without shared locks, semaphores, queues and revocation.
func (b *Backend) Caps() driver.Caps { return b.caps }

// drift returns how much longer than ttl members are to hold. It is zero for a TTL so long
// that the sum would overflow.
func (b *Backend) drift(ttl time.Duration) time.Duration {
	d := ttl/driftParts + driftFloor
	if ttl > math.MaxInt64-d {
		return 0
	}
	return d
}

// endAtMembers returns when a hold that is requested now has ended at all members, if the
// calls arrive in time.
func (b *Backend) endAtMembers(ttl time.Duration) time.Time {
	return time.Now().Add(ttl + b.drift(ttl))
}

// timeout bounds one call to one member.
func (b *Backend) timeout(ttl time.Duration) time.Duration {
	if b.opts.MemberTimeout > 0 {
		return b.opts.MemberTimeout
	}
	if ttl <= 0 {
		return longestTimeout
	}
	return min(max(ttl/8, shortestTimeout), longestTimeout)
}

// Close retries pending releases once, within one member's timeout, and closes the members.
func (b *Backend) Close() error { return b.close() }

func (b *Backend) closeAll() error {
	b.calls.Close()
	b.calls.Wait(min(b.timeout(0), longestTimeout))
	b.end()
	b.calls.Wait(longestTimeout)
	if err := members.CloseAll(b.members); err != nil {
		return fmt.Errorf("quorum: %w", err)
	}
	return nil
}

// checkMode returns ErrUnsupported for all modes but Exclusive.
func checkMode(m driver.Mode) error {
	switch m {
	case driver.Exclusive:
		return nil
	case driver.Counted:
		return fmt.Errorf("%w: quorum: semaphores: of 2 permits, 3 users could each win 2 of 3 members; use one coordinator that is replicated, such as redis+sentinel:// or etcd://", driver.ErrUnsupported)
	}
	return fmt.Errorf("%w: quorum: shared locks (mode %v): it has exclusive locks only; use one coordinator that is replicated, such as redis+sentinel:// or etcd://", driver.ErrUnsupported, m)
}

// send calls f in the background, after the calls to m for these Owners that were sent before. The
// caller has begun a call or a task.
func (b *Backend) send(m *member, owners []string, f func(*queuedCall)) {
	c := m.queue.add(owners)
	b.calls.Go(func() {
		defer m.queue.remove(c)
		c.wait()
		f(c)
	})
}

// callContext returns the context of one call to a member. It has the values of the caller's
// context but does not end with it, so that the result of a call is always known.
func (b *Backend) callContext(values context.Context, ttl time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(&valueContext{b.life, values}, b.timeout(ttl))
}

// valueContext has the end of one context and the values of another.
type valueContext struct {
	context.Context
	values context.Context
}

func (c *valueContext) Value(key any) any {
	if v := c.Context.Value(key); v != nil {
		return v
	}
	return c.values.Value(key)
}

// worthWaiting reports whether to wait for the pending members: if one of them answered its last
// call, or if the members that did are no majority.
func (b *Backend) worthWaiting(pending func(member int) bool) bool {
	waiting, answering := false, 0
	for i, m := range b.members {
		silent := m.silent.Load()
		if !silent {
			answering++
		}
		if pending(i) {
			if !silent {
				return true
			}
			waiting = true
		}
	}
	return waiting && answering < b.majority
}
