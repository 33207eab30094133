package shard

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/distlock/distlock/driver"
)

// State says in which of two lists a member is while the list changes.
type State uint8

// The states. A member that is Joining is not in the list that other processes may
// still have, one that is Leaving not in the one they are to have. Where there is one of
// either, each lock whose member changes is taken at both, the old one first.
const (
	Staying State = iota
	Joining
	Leaving
)

// Member is one of the backends that locks are spread over.
type Member struct {
	// Name places the locks: it has to be the same in every process and must not change
	// when the member's address does. It consists of A-Z, a-z, 0-9, and . _ - and has at most 64.
	Name string

	Backend driver.Backend
	State   State
}

// Options are how a Backend uses its members. The zero value is the default.
type Options struct {
	// Group is the name of those who share these locks. Groups with members in common may
	// have different lists, and must not use the same lock names. At most 64 bytes of UTF-8
	// without NUL. Default: none.
	Group string

	// Record is for how long the list stays recorded at the members when a process dies
	// without a Close, at least; it is twice the longest TTL in use if that is longer. Until
	// then no process with another list is let in. At least 1 s. 0: one minute.
	Record time.Duration
}

const (
	defaultRecord = time.Minute
	maxTTL        = 1 << 61
)

// reserved begins the names of the locks that record lists. A group's name follows.
const reserved = "distlock:shard:"

// Backend spreads locks over its members. It is safe for concurrent use.
type Backend struct {
	members []*member
	lists   []*list
	caps    driver.Caps
	roll    *roll
	holds   holds

	life   context.Context // of what is done in the background
	end    context.CancelFunc
	mu     sync.Mutex
	closed bool
	tasks  sync.WaitGroup
	once   sync.Once
	err    error // of closing the members
}

type member struct {
	driver.Backend
	name  string
	state State
}

var (
	_ driver.Backend   = (*Backend)(nil)
	_ driver.Watcher   = (*Backend)(nil)
	_ driver.Inspector = (*Backend)(nil)
	_ driver.Revoker   = (*Backend)(nil)
)

// New spreads locks over members. They are its own from then on: Close closes them. If
// New fails they are still the caller's.
//
// It records its list at the members, and needs a majority of them for that. If a process
// with another list is seen it answers ErrInvalid, and names both lists.
func New(ctx context.Context, members []Member, opts *Options) (*Backend, error) {
	o, err := opts.settle()
	if err != nil {
		return nil, err
	}
	b := &Backend{}
	for i, m := range members {
		if m.Backend == nil {
			return nil, fmt.Errorf("%w: shard: member %d, %q, is nil", driver.ErrInvalid, i+1, m.Name)
		}
		b.members = append(b.members, &member{m.Backend, m.Name, m.State})
	}
	if err := checkNames(b.members); err != nil {
		return nil, err
	}
	if b.lists, err = makeLists(b.members); err != nil {
		return nil, err
	}
	if b.caps, err = b.merge(); err != nil {
		return nil, err
	}
	b.life, b.end = context.WithCancel(context.Background())
	b.roll = newRoll(reserved+o.Group, b.lists, b.members, b.record(o.Record))
	b.roll.start()
	if err := b.roll.first(ctx); err != nil {
		b.roll.close(true)
		b.end()
		return nil, err
	}
	return b, nil
}

func (o *Options) settle() (Options, error) {
	if o == nil {
		o = &Options{}
	}
	s := *o
	if s.Record == 0 {
		s.Record = defaultRecord
	}
	if s.Record < time.Second || s.Record > maxTTL {
		return s, fmt.Errorf("%w: shard: Record %v: want at least 1 s, or 0 for the default", driver.ErrInvalid, s.Record)
	}
	if len(s.Group) > 64 || !utf8.ValidString(s.Group) || strings.Contains(s.Group, "\x00") {
		return s, fmt.Errorf("%w: shard: Group %q: want at most 64 bytes of UTF-8 without NUL", driver.ErrInvalid, s.Group)
	}
	return s, nil
}

// checkNames wants words, each once: they stand in lists with commas.
func checkNames(members []*member) error {
	const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-"
	seen := map[string]bool{}
	for i, m := range members {
		switch {
		case m.name == "":
			return fmt.Errorf("%w: shard: member %d has no name", driver.ErrInvalid, i+1)
		case strings.Trim(m.name, letters) != "" || len(m.name) > 64:
			return fmt.Errorf("%w: shard: member %d: name %q: want at most 64 of A-Z a-z 0-9 . _ -", driver.ErrInvalid, i+1, m.name)
		case seen[m.name]:
			return fmt.Errorf("%w: shard: two members have the name %s", driver.ErrInvalid, m.name)
		case m.state > Leaving:
			return fmt.Errorf("%w: shard: member %s: State %d", driver.ErrInvalid, m.name, m.state)
		}
		seen[m.name] = true
	}
	return nil
}

// record is how long entries live: within the members' bounds.
func (b *Backend) record(d time.Duration) time.Duration {
	for _, m := range b.members {
		c := m.Caps()
		d = min(max(d, c.MinTTL), c.Longest())
	}
	return d
}

// merge is what all members can do.
func (b *Backend) merge() (driver.Caps, error) {
	c := b.members[0].Caps()
	sessions := 0
	for _, m := range b.members {
		own := m.Caps()
		c = c.Intersect(own)
		if own.Session {
			sessions++
		}
		if _, ok := m.Backend.(driver.Inspector); !ok || !own.Modes.Has(driver.Read) {
			return c, fmt.Errorf("%w: shard: member %s (%s) has no shared locks that can be inspected, by which lists are recorded", driver.ErrUnsupported, m.name, own.Name)
		}
	}
	if err := b.checkSessions(sessions); err != nil {
		return c, err
	}
	c.MaxTTL = c.Longest() / 2 // an entry lives for longer than any lock
	if len(b.lists) == 2 {
		c.Queueing, c.QueuedModes, c.SpanLife = driver.QueueNever, 0, 0
		c.Fence = c.Fence && c.Floor
	}
	c.Name = "shard(" + strings.ReplaceAll(b.lists[len(b.lists)-1].text, ",", " ") + ")"
	return c, nil
}

// checkSessions refuses to mix what can't be mixed: of a hold that has a TTL nobody
// expects that it lives on with a session.
func (b *Backend) checkSessions(sessions int) error {
	if sessions == 0 || sessions == len(b.members) {
		return nil
	}
	for _, m := range b.members {
		if c := m.Caps(); c.Session && !c.Fixed {
			return fmt.Errorf("%w: shard: holds at member %s (%s) live with its session, and those at others don't: want all members of one of these kinds", driver.ErrUnsupported, m.name, c.Name)
		}
	}
	return nil
}

// Caps is what all members can do. While members join or leave there are no places in
// line, and fences only where all members can raise theirs (Caps.Floor).
func (b *Backend) Caps() driver.Caps { return b.caps }

// begin opens a call, unless the backend is closed; tasks.Done ends it.
func (b *Backend) begin(ctx context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return fmt.Errorf("shard: %w", driver.ErrClosed)
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("shard: %w", err)
	}
	b.tasks.Add(1)
	return nil
}

// Close closes the members. The record of the list is taken away first if nothing is held;
// else it stays until the holds have ended by themselves.
func (b *Backend) Close() error {
	b.once.Do(func() {
		b.mu.Lock()
		b.closed = true
		b.mu.Unlock()
		b.end()
		b.roll.close(!b.holds.any())
		b.err = b.closeMembers()
		b.tasks.Wait()
	})
	return b.err
}

func (b *Backend) closeMembers() error {
	errs := make([]error, len(b.members))
	var wg sync.WaitGroup
	for i, m := range b.members {
		wg.Go(func() {
			if err := m.Close(); err != nil {
				errs[i] = fmt.Errorf("shard: close %s: %w", m.name, err)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}
