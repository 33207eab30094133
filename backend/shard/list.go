package shard

import (
	"fmt"
	"slices"
	"strings"

	"github.com/distlock/distlock/driver"
)

// list is a member list that this backend's locks are placed by.
type list struct {
	text    string // the names, which other processes compare
	members []*member
	seeds   []uint64
}

func newList(members []*member) *list {
	l := &list{members: slices.Clone(members)}
	// In one order, so that all processes settle equal scores alike.
	slices.SortFunc(l.members, func(a, b *member) int { return strings.Compare(a.name, b.name) })
	var names []string
	for _, m := range l.members {
		names = append(names, m.name)
		l.seeds = append(l.seeds, hash(m.name))
	}
	l.text = strings.Join(names, ",")
	return l
}

// member is the one that has a name.
func (l *list) member(name string) *member { return l.members[pick(l.seeds, name)] }

// majority is how many members must know that somebody works with the list.
func (l *list) majority() int { return len(l.members)/2 + 1 }

// makeLists makes the list of those who stay; or two, first the one before the change.
func makeLists(members []*member) ([]*list, error) {
	var before, after []*member
	for _, m := range members {
		if m.state != Joining {
			before = append(before, m)
		}
		if m.state != Leaving {
			after = append(after, m)
		}
	}
	switch {
	case len(members) == 0:
		return nil, fmt.Errorf("%w: shard: no members", driver.ErrInvalid)
	case len(before) == 0:
		return nil, fmt.Errorf("%w: shard: all members are joining: want those without, which other processes use now", driver.ErrInvalid)
	case len(after) == 0:
		return nil, fmt.Errorf("%w: shard: all members are leaving", driver.ErrInvalid)
	case len(before) == len(members) && len(after) == len(members):
		return []*list{newList(after)}, nil
	}
	return []*list{newList(before), newList(after)}, nil
}

// place is where a name is locked: at first, and during a change also at second, unless
// it is nil.
type place struct{ first, second *member }

func (b *Backend) place(name string) place {
	p := place{first: b.lists[0].member(name)}
	if len(b.lists) == 2 {
		if m := b.lists[1].member(name); m != p.first {
			p.second = m
		}
	}
	return p
}

// members are one or two.
func (p place) members() []*member {
	if p.second == nil {
		return []*member{p.first}
	}
	return []*member{p.first, p.second}
}
