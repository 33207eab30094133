package shard

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/members"
)

// Member is one of the backends that locks are spread over.
type Member struct {
	// Name decides which locks the member has. It must be the same in every process, and must not
	// change with the member's address. It has at most 64 of A-Z a-z 0-9 . _ -
	Name string

	Backend driver.Backend
}

// Backend spreads locks over its members. It is safe for concurrent use.
type Backend struct {
	members []*member // in the order of their names, in which equal scores are decided
	seeds   []uint64
	caps    driver.Caps

	calls *members.Calls
	close func() error
}

type member struct{ members.Member }

// wrap adds the member's name to err.
func (m *member) wrap(err error) error { return fmt.Errorf("shard: member %s: %w", m.Name, err) }

var (
	_ driver.Backend   = (*Backend)(nil)
	_ driver.Watcher   = (*Backend)(nil)
	_ driver.Inspector = (*Backend)(nil)
	_ driver.Revoker   = (*Backend)(nil)
)

// New spreads locks over members, whose order does not matter. Close closes them. If New fails, they
// remain the caller's. Every process must have the same names: those with other ones are not kept out.
func New(all []Member) (*Backend, error) {
	b := &Backend{calls: members.NewCalls("shard")}
	b.close = sync.OnceValue(b.closeAll)
	if err := checkMembers(all); err != nil {
		return nil, err
	}
	for _, m := range slices.SortedFunc(slices.Values(all), func(a, b Member) int { return strings.Compare(a.Name, b.Name) }) {
		b.members = append(b.members, &member{members.Member{Backend: m.Backend, Name: m.Name}})
		b.seeds = append(b.seeds, hash(m.Name))
	}
	var err error
	if b.caps, err = b.merge(); err != nil {
		return nil, err
	}
	return b, nil
}

// checkMembers returns ErrInvalid for members that are nil, and for names that are not unique, or
// can't be in a URL.
func checkMembers(all []Member) error {
	const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-"
	seen := map[string]bool{}
	for i, m := range all {
		switch {
		case m.Backend == nil:
			return fmt.Errorf("%w: shard: member %d, %q, is nil", driver.ErrInvalid, i+1, m.Name)
		case m.Name == "":
			return fmt.Errorf("%w: shard: member %d has no name", driver.ErrInvalid, i+1)
		case strings.Trim(m.Name, letters) != "" || len(m.Name) > 64:
			return fmt.Errorf("%w: shard: member %d: name %q: want at most 64 of A-Z a-z 0-9 . _ -", driver.ErrInvalid, i+1, m.Name)
		case seen[m.Name]:
			return fmt.Errorf("%w: shard: two members have the name %s", driver.ErrInvalid, m.Name)
		}
		seen[m.Name] = true
	}
	if len(all) == 0 {
		return fmt.Errorf("%w: shard: no members", driver.ErrInvalid)
	}
	return nil
}

// merge returns the common capabilities of all members.
func (b *Backend) merge() (driver.Caps, error) {
	c := b.members[0].Caps()
	sessions, names := 0, []string{}
	for _, m := range b.members {
		own := m.Caps()
		c = c.Intersect(own)
		if names = append(names, m.Name+"="+own.Name); own.Session {
			sessions++
		}
	}
	c.Name = nameOf(names)
	return c, b.checkSessions(sessions)
}

// nameOf makes the name of a shard of its members' names, each with its coordinator.
func nameOf(members []string) string { return "shard(" + strings.Join(members, " ") + ")" }

// checkSessions returns ErrUnsupported if some members' holds can only live with their
// session: where others have TTLs, no caller expects that a hold outlives its own.
func (b *Backend) checkSessions(sessions int) error {
	if sessions == 0 || sessions == len(b.members) {
		return nil
	}
	for _, m := range b.members {
		if c := m.Caps(); c.Session {
			return fmt.Errorf("%w: shard: holds at member %s (%s) live with its session, and those at others don't: want all members of one of these kinds", driver.ErrUnsupported, m.Name, c.Name)
		}
	}
	return nil
}

// Caps returns the common capabilities of all members.
func (b *Backend) Caps() driver.Caps { return b.caps }

// Close closes the members.
func (b *Backend) Close() error { return b.close() }

func (b *Backend) closeAll() error {
	b.calls.Close()
	err := members.CloseAll(b.members)
	b.calls.Wait(math.MaxInt64)
	if err != nil {
		return fmt.Errorf("shard: %w", err)
	}
	return nil
}

// memberOf returns the member that has a name.
func (b *Backend) memberOf(name string) *member { return b.members[pick(b.seeds, name)] }
