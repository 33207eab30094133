package shard

import (
	"context"
	"fmt"
	"math"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/members"
)

// Member is one of the backends that locks are spread over.
type Member struct {
	// Name decides which locks the member has. It must be the same in every process, and must not
	// change with the member's address. It has at most 64 of A-Z a-z 0-9 . _ -
	Name string

	Backend driver.Backend
	State   State
}

// Options configure a Backend. The zero value means the defaults.
type Options struct {
	// Group names the processes that share these locks. Groups with common members may have
	// different lists, and must not use the same lock names. It has at most 64 bytes of UTF-8
	// without NUL. The default is empty.
	Group string

	// Record is the TTL of the list's registration at each member, or twice the longest TTL of
	// a lock in use if that is longer. After a process has died without Close, processes with
	// another list are refused for that time. It is at least 1 s. Zero means one minute.
	Record time.Duration
}

const (
	defaultRecord = time.Minute
	maxRecord     = 1 << 61
)

// reserved is the prefix of the locks that register lists. A group's name follows.
const reserved = "distlock:shard:"

// Backend spreads locks over its members. It is safe for concurrent use.
type Backend struct {
	members    []*member
	lists      []*list
	caps       driver.Caps
	membership *membership
	owners     owners

	calls *members.Calls
	close func() error
}

var (
	_ driver.Backend   = (*Backend)(nil)
	_ driver.Watcher   = (*Backend)(nil)
	_ driver.Inspector = (*Backend)(nil)
	_ driver.Revoker   = (*Backend)(nil)
)

// New spreads locks over members. Close closes them. If New fails, they remain the caller's.
//
// New registers its list at the members, and needs a majority of them for that. If it finds a
// process with another list it returns ErrInvalid with both lists.
func New(ctx context.Context, all []Member, opts *Options) (*Backend, error) {
	o, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	b := &Backend{calls: members.NewCalls("shard")}
	b.close = sync.OnceValue(b.closeAll)
	for i, m := range all {
		if m.Backend == nil {
			return nil, fmt.Errorf("%w: shard: member %d, %q, is nil", driver.ErrInvalid, i+1, m.Name)
		}
		b.members = append(b.members, &member{members.Member{Backend: m.Backend, Name: m.Name}, m.State})
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
	b.membership = newMembership(reserved+o.Group, b.lists, b.members, b.registrationTTL(o.Record))
	b.membership.start()
	if err := b.membership.awaitFirst(ctx); err != nil {
		b.membership.close(true)
		return nil, err
	}
	return b, nil
}

func (o *Options) withDefaults() (Options, error) {
	if o == nil {
		o = &Options{}
	}
	s := *o
	if s.Record == 0 {
		s.Record = defaultRecord
	}
	if s.Record < time.Second || s.Record > maxRecord {
		return s, fmt.Errorf("%w: shard: Record %v: want at least 1 s, or 0 for the default", driver.ErrInvalid, s.Record)
	}
	if len(s.Group) > 64 || !utf8.ValidString(s.Group) || strings.Contains(s.Group, "\x00") {
		return s, fmt.Errorf("%w: shard: Group %q: want at most 64 bytes of UTF-8 without NUL", driver.ErrInvalid, s.Group)
	}
	return s, nil
}

// checkNames returns ErrInvalid for names that are not unique, or can't be in a list with commas.
func checkNames(members []*member) error {
	const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-"
	seen := map[string]bool{}
	for i, m := range members {
		switch {
		case m.Name == "":
			return fmt.Errorf("%w: shard: member %d has no name", driver.ErrInvalid, i+1)
		case strings.Trim(m.Name, letters) != "" || len(m.Name) > 64:
			return fmt.Errorf("%w: shard: member %d: name %q: want at most 64 of A-Z a-z 0-9 . _ -", driver.ErrInvalid, i+1, m.Name)
		case seen[m.Name]:
			return fmt.Errorf("%w: shard: two members have the name %s", driver.ErrInvalid, m.Name)
		case m.state > Leaving:
			return fmt.Errorf("%w: shard: member %s: State %d", driver.ErrInvalid, m.Name, m.state)
		}
		seen[m.Name] = true
	}
	return nil
}

// registrationTTL returns d within the members' bounds.
func (b *Backend) registrationTTL(d time.Duration) time.Duration {
	for _, m := range b.members {
		c := m.Caps()
		d = min(max(d, c.MinTTL), c.Longest())
	}
	return d
}

// merge returns the common capabilities of all members.
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
			return c, fmt.Errorf("%w: shard: member %s (%s) has no shared locks that can be inspected, which are needed to register lists", driver.ErrUnsupported, m.Name, own.Name)
		}
	}
	if err := b.checkSessions(sessions); err != nil {
		return c, err
	}
	c.MaxTTL = c.Longest() / 2 // a registration outlives every lock
	if len(b.lists) == 2 {
		c.Queueing, c.QueuedModes = driver.QueueNever, 0
		c.Fence = c.Fence && c.Floor
	}
	c.Name = "shard(" + strings.ReplaceAll(b.lists[len(b.lists)-1].text, ",", " ") + ")"
	return c, nil
}

// checkSessions returns ErrUnsupported if some members' holds can only live with their
// session: where others have TTLs, no caller expects that a hold outlives its own.
func (b *Backend) checkSessions(sessions int) error {
	if sessions == 0 || sessions == len(b.members) {
		return nil
	}
	for _, m := range b.members {
		if c := m.Caps(); c.Session && !c.Fixed {
			return fmt.Errorf("%w: shard: holds at member %s (%s) live with its session, and those at others don't: want all members of one of these kinds", driver.ErrUnsupported, m.Name, c.Name)
		}
	}
	return nil
}

// Caps returns the common capabilities of all members. While members join or leave there are no queues,
// and fences only if all members can raise theirs (Caps.Floor).
func (b *Backend) Caps() driver.Caps { return b.caps }

// Close closes the members. If nothing is held it deregisters the list first. Otherwise the
// registrations stay until the holds have ended by themselves.
func (b *Backend) Close() error { return b.close() }

func (b *Backend) closeAll() error {
	b.calls.Close()
	b.membership.close(!b.owners.any())
	err := members.CloseAll(b.members)
	b.calls.Wait(math.MaxInt64)
	if err != nil {
		return fmt.Errorf("shard: %w", err)
	}
	return nil
}

// targetOf returns the members at which a name is locked.
func (b *Backend) targetOf(name string) target { return targetOf(b.lists, name) }

// owners records how, and until when at most, this backend's Owners may hold. It never
// decides whether a lock is held.
type owners struct {
	mu sync.Mutex
	m  map[string]possibleHold
}

type possibleHold struct {
	mode  driver.Mode
	until time.Time
	taken bool // at each of its members; otherwise another process may have taken it at one of them
}

// add notes that owner may hold from now on.
func (o *owners) add(owner string, mode driver.Mode, until time.Time, taken bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.m == nil {
		o.m = map[string]possibleHold{}
	}
	// Visiting two for each one added keeps those few that ended without a release.
	visits, now := 2, time.Now()
	for owner, h := range o.m {
		if h.until.Before(now) {
			delete(o.m, owner)
		}
		if visits--; visits == 0 {
			break
		}
	}
	h := o.m[owner]
	if h.until.After(until) {
		until = h.until // this request may be refused
	}
	o.m[owner] = possibleHold{mode, until, taken || h.taken}
}

func (o *owners) remove(owner string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.m, owner)
}

// mode returns the mode in which owner may hold; 0 if it can't.
func (o *owners) mode(owner string) driver.Mode {
	o.mu.Lock()
	defer o.mu.Unlock()
	if h, ok := o.m[owner]; ok && time.Now().Before(h.until) {
		return h.mode
	}
	return 0
}

// confirm notes that owner has its hold at each of its members.
func (o *owners) confirm(owner string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if h, ok := o.m[owner]; ok {
		h.taken = true
		o.m[owner] = h
	}
}

// taken reports whether owner may have a hold at each of its members.
func (o *owners) taken(owner string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.m[owner].taken
}

// any reports whether an Owner may hold.
func (o *owners) any() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, h := range o.m {
		if time.Now().Before(h.until) {
			return true
		}
	}
	return false
}
