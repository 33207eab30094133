package zklock

import (
	"cmp"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/distlock/distlock/driver"
)

// The children of a lock's path, as Curator names them: "_c_", the owner's UUID, "-",
// a base name that tells the kind, and the sequence number that ZooKeeper adds.
const (
	protection = "_c_"
	ownerLen   = 36

	// A semaphore's waiters stand in line in locks, as users of a mutex, and who is at
	// its head takes a lease.
	locksNode  = "locks"
	leasesNode = "leases"
)

// kind is what a node stands for.
type kind uint8

const (
	mutexKind kind = iota + 1
	readKind
	writeKind
	leaseKind
	foreignKind // of a recipe that we have nothing to do with
)

// bases are what is between the owner and the number. Below one path are nodes of
// Curator's recipes, or of kazoo's.
var bases = []struct {
	text string
	kind kind
}{
	{"lock-", mutexKind}, {"__READ__", readKind}, {"__WRIT__", writeKind}, {"lease-", leaseKind},
	{"latch-", foreignKind}, {"__lock__", foreignKind}, {"__rlock__", foreignKind},
}

// unlike are the letters that each base begins with: a name without them has no base.
const unlike = "l_"

// base is what nodes of a kind have in their names.
func (k kind) base() string { return bases[k-1].text }

// mode is how the owner of a node holds.
func (k kind) mode() driver.Mode {
	switch k {
	case mutexKind:
		return driver.Exclusive
	case readKind:
		return driver.Read
	case writeKind:
		return driver.Write
	}
	return driver.Counted
}

// kindOf is the kind of node that stands for a hold of the mode.
func kindOf(m driver.Mode) kind {
	switch m {
	case driver.Exclusive:
		return mutexKind
	case driver.Read:
		return readKind
	case driver.Write:
		return writeKind
	}
	return leaseKind
}

// node is a child of a lock's path that belongs to the lock.
type node struct {
	name  string
	kind  kind
	key   string // its number, as text
	owner string // a UUID, or the whole name where there is none
	limit int    // of a lease: how many there may be, as its owner has it; 0: unknown
}

// parseNode reads a child's name; false if it belongs to no lock.
func parseNode(name string) (node, bool) {
	for _, b := range bases {
		i := strings.LastIndex(name, b.text)
		if i < 0 || !isSequence(name[i+len(b.text):]) {
			continue
		}
		n := node{name: name, kind: b.kind, key: name[i+len(b.text):], owner: name}
		if owner, rest, ok := cutOwner(name[:i]); ok {
			n.owner = owner
			n.limit = parseLimit(rest)
		}
		return n, true
	}
	return node{}, false
}

// cutOwner parts "_c_UUID-rest".
func cutOwner(s string) (owner, rest string, ok bool) {
	s, ok = strings.CutPrefix(s, protection)
	if !ok || len(s) <= ownerLen || s[ownerLen] != '-' || !isUUID(s[:ownerLen]) {
		return "", "", false
	}
	return s[:ownerLen], s[ownerLen+1:], true
}

func isUUID(s string) bool {
	if len(s) != ownerLen || s[8] != '-' || s[13] != '-' || s[18] != '-' || s[23] != '-' {
		return false
	}
	_, err := hex.DecodeString(s[:8] + s[9:13] + s[14:18] + s[19:23] + s[24:])
	return err == nil
}

// isSequence: ZooKeeper writes numbers with ten characters at least. Some are negative
// when they are used up.
func isSequence(s string) bool {
	if len(s) < 10 || len(s) > 11 {
		return false
	}
	digits := strings.TrimPrefix(s, "-")
	return strings.Trim(digits, "0123456789") == "" && (len(s) == 10 || digits != s)
}

// lastKey is where numbers get so high that they are about to be used up. Behind the last
// one, 2147483647, ZooKeeper gives that again and again, or negative numbers to those who
// come at once: the order is lost, and the parent's Stat does not tell of new nodes.
const lastKey = "2146435072" // 1<<31 - 1<<20

// usedUp: numbers from here on can't be relied on.
func (n node) usedUp() bool { return n.key[0] == '-' || n.key >= lastKey }

// prefixOf begins the name of an owner's node.
func prefixOf(owner string) string { return protection + owner + "-" }

// limitPart is how the name of a lease tells how many there may be. Curator cares for the
// end of a name only.
func limitPart(limit int) string { return fmt.Sprintf("max%d-", limit) }

func parseLimit(s string) int {
	s, isMax := strings.CutPrefix(s, "max")
	s, ends := strings.CutSuffix(s, "-")
	n, err := strconv.Atoi(s)
	if !isMax || !ends || err != nil || n < 1 {
		return 0
	}
	return n
}

// row are the nodes of a lock in their order, which is that of the numbers as text, as
// Curator has it. A reader that was a writer has the same number as the writer.
type row []node

// family is what a lock's path has below it.
type family struct {
	row    row
	locks  bool // it is, or was, a semaphore
	leases bool
}

// readFamily sorts children. Those that are no part of the lock are left out.
func readFamily(children []string) family {
	var f family
	for _, name := range children {
		switch name {
		case locksNode:
			f.locks = true
		case leasesNode:
			f.leases = true
		default:
			if n, ok := parseNode(name); ok {
				f.row = append(f.row, n)
			}
		}
	}
	slices.SortFunc(f.row, func(a, b node) int {
		return cmp.Or(strings.Compare(a.key, b.key), strings.Compare(a.name, b.name))
	})
	return f
}

// index is where the node called name is; -1 if it is not there.
func (r row) index(name string) int {
	return slices.IndexFunc(r, func(n node) bool { return n.name == name })
}

// indexOf is where an owner's node is; -1 if there is none.
func (r row) indexOf(owner string) int {
	return slices.IndexFunc(r, func(n node) bool { return n.owner == owner })
}

// of are the nodes of an owner.
func (r row) of(owner string) row {
	var own row
	for _, n := range r {
		if n.owner == owner {
			own = append(own, n)
		}
	}
	return own
}

// blocker is the node whose end may let in who has the place at index me, as a holder of
// the kind. Those who have no place are behind everybody: me is len(r). Readers let each
// other in, and wait for the last writer before them.
func (r row) blocker(me int, k kind) (node, bool) {
	for i := me - 1; i >= 0; i-- {
		if me < len(r) && r[i].key == r[me].key {
			continue // the same owner, as a writer
		}
		if k != readKind || r[i].kind == writeKind {
			return r[i], true
		}
	}
	return node{}, false
}

// stranger is a node before index me that is of another kind of lock than k.
func (r row) stranger(me int, k kind) (node, bool) {
	for _, n := range r[:me] {
		if n.kind == foreignKind || !n.kind.mode().SameKind(k.mode()) {
			return n, true
		}
	}
	return node{}, false
}

// waits: somebody behind index me waits for its end.
func (r row) waits(me int, k kind) bool {
	for _, n := range r[me+1:] {
		if k != readKind || n.kind != readKind {
			return true
		}
	}
	return false
}
