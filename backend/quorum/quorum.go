package quorum

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/distlock/distlock/driver"
)

// Options are how a Backend uses its members. The zero value is the default.
type Options struct {
	// Name is what Caps call the quorum; it must be the same in every process. The
	// default is made of the members' names, in alphabetical order.
	Name string

	// MemberTimeout bounds one call to one member. A member that is silent for longer
	// is done without. 0: an eighth of the TTL, at least 50 ms and at most 1 s.
	MemberTimeout time.Duration

	// Drift is how much faster than the caller's clock a member's may run, as a part of
	// the TTL: members are asked for TTL + Drift·TTL + 2 ms. 0: 0.01, one percent. It
	// is at most 0.5.
	Drift float64
}

const (
	defaultDrift = 0.01
	driftFloor   = 2 * time.Millisecond // for clocks that count in milliseconds

	shortestTimeout = 50 * time.Millisecond
	longestTimeout  = time.Second
)

// Backend is a lock kept by a majority of its members. It is safe for concurrent use.
type Backend struct {
	members  []*member
	majority int
	opts     Options
	caps     driver.Caps
	holds    holds

	life    context.Context // of every call to a member
	end     context.CancelFunc
	closing chan struct{} // closed when Close begins

	mu     sync.Mutex
	closed bool
	tasks  sync.WaitGroup
	once   sync.Once
	err    error // of closing the members
}

// member is one of the backends, with the order of the calls to it.
type member struct {
	driver.Backend
	name    string
	lane    lane
	remains remains
	silent  atomic.Bool // the last call had no answer
}

var (
	_ driver.Backend   = (*Backend)(nil)
	_ driver.Watcher   = (*Backend)(nil)
	_ driver.Inspector = (*Backend)(nil)
)

// New makes one backend of independent members. They are its own from then on: Close
// closes them. If New fails they are still the caller's.
//
// Any number of members is allowed. What counts is how many may fail: none of 1 or 2,
// one of 3 or 4, two of 5; so an even number costs a member more than it is good for.
// Two members of one name are ErrInvalid: a server that is counted twice is no majority.
func New(members []driver.Backend, opts *Options) (*Backend, error) {
	names := make([]string, len(members))
	var caps []driver.Caps
	for i, m := range members {
		if m == nil {
			return nil, fmt.Errorf("%w: quorum: member %d is nil", driver.ErrInvalid, i+1)
		}
		caps = append(caps, m.Caps())
		names[i] = caps[i].Name
	}
	return assemble(members, names, caps, opts)
}

// assemble is New with names for the members, and what those can do that are there.
func assemble(backends []driver.Backend, names []string, caps []driver.Caps, opts *Options) (*Backend, error) {
	o, err := opts.settle()
	if err != nil {
		return nil, err
	}
	sorted := slices.Sorted(slices.Values(names))
	if len(names) == 0 {
		return nil, fmt.Errorf("%w: quorum: no members: want 3 or 5", driver.ErrInvalid)
	}
	if err := unique(names); err != nil {
		return nil, err
	}
	b := &Backend{majority: len(names)/2 + 1, opts: o, closing: make(chan struct{})}
	for i, m := range backends {
		b.members = append(b.members, &member{Backend: m, name: names[i]})
	}
	b.life, b.end = context.WithCancel(context.Background())
	b.caps = b.merge(caps)
	if b.caps.Name = o.Name; o.Name == "" {
		b.caps.Name = "quorum(" + strings.Join(sorted, " ") + ")"
	}
	return b, nil
}

// unique refuses members that are the same server.
func unique(names []string) error {
	seen := map[string]bool{}
	for _, name := range names {
		if seen[name] {
			return fmt.Errorf("%w: quorum: %s is a member twice; one server must not have two votes", driver.ErrInvalid, name)
		}
		seen[name] = true
	}
	return nil
}

func (o *Options) settle() (Options, error) {
	if o == nil {
		o = &Options{}
	}
	s := *o
	if s.MemberTimeout < 0 {
		return s, fmt.Errorf("%w: quorum: MemberTimeout %v: want a positive duration, or 0 for the default", driver.ErrInvalid, s.MemberTimeout)
	}
	if !(s.Drift >= 0 && s.Drift <= 0.5) {
		return s, fmt.Errorf("%w: quorum: Drift %v: want a part of the TTL such as 0.01, at most 0.5", driver.ErrInvalid, s.Drift)
	}
	if s.Drift == 0 {
		s.Drift = defaultDrift
	}
	return s, nil
}

// merge says what a majority of these can do.
func (b *Backend) merge(members []driver.Caps) driver.Caps {
	c := members[0]
	sessions := 0
	for _, m := range members {
		c = c.Intersect(m)
		if m.Session {
			sessions++
		}
	}
	c.Modes &^= driver.Modes(driver.Counted)
	c.Fence = c.Fence && c.Floor // the second round is a Floor
	c.Queueing, c.QueuedModes, c.SpanLife, c.Revocable = driver.QueueNever, 0, 0, 0
	c.Session = sessions > len(b.members)-b.majority
	if c.MaxTTL > 0 {
		c.MaxTTL = time.Duration(float64(c.MaxTTL-driftFloor) / (1 + b.opts.Drift))
	}
	return c
}

// Caps is what all members can do, but for semaphores, places in line, and asking holders.
func (b *Backend) Caps() driver.Caps { return b.caps }

// drift is how much longer members are asked to hold than the caller relies on. It is zero
// for a TTL of centuries to which it can't be added.
func (b *Backend) drift(ttl time.Duration) time.Duration {
	d := time.Duration(float64(ttl)*b.opts.Drift) + driftFloor
	if ttl > math.MaxInt64-d {
		return 0
	}
	return d
}

// atMembers is when a hold has ended at every member that is asked for it from now on at
// the latest, if the calls arrive in time.
func (b *Backend) atMembers(ttl time.Duration) time.Time {
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

// begin opens a call, unless the backend is closed; tasks.Done ends it.
func (b *Backend) begin(ctx context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return fmt.Errorf("quorum: %w", driver.ErrClosed)
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("quorum: %w", err)
	}
	b.tasks.Add(1)
	return nil
}

// Close lets what is being cleaned up have one more try, within one member's timeout,
// and closes the members.
func (b *Backend) Close() error {
	b.once.Do(func() {
		b.mu.Lock()
		b.closed = true
		b.mu.Unlock()
		close(b.closing)
		b.await(min(b.timeout(0), longestTimeout))
		b.end()
		b.await(longestTimeout)
		b.err = b.closeMembers()
	})
	return b.err
}

// await waits for what is under way, for at most d.
func (b *Backend) await(d time.Duration) {
	idle := make(chan struct{})
	go func() {
		b.tasks.Wait()
		close(idle)
	}()
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-idle:
	case <-t.C:
	}
}

func (b *Backend) closeMembers() error {
	errs := make([]error, len(b.members))
	var wg sync.WaitGroup
	for i, m := range b.members {
		wg.Go(func() {
			if err := m.Close(); err != nil {
				errs[i] = fmt.Errorf("quorum: close %s: %w", m.name, err)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}
