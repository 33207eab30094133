package zklock

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/distlock/distlock/driver"
)

// A lock's path is its name: "orders/555" is /orders/555 below the chroot. These bytes are written
// as %XX, as in URLs:
//
//   - characters that ZooKeeper refuses;
//   - the segments "." and "..", and "zookeeper" at the top, which ZooKeeper reserves;
//   - below another name, segments that belong to that name's lock: "locks", "leases", and
//     names of its nodes;
//   - a % that would otherwise be read as the beginning of an escape.
//
// An empty segment is %00, which occurs in no name. So every name has a path of its own, and plain
// names have the same paths as in Curator.

const (
	emptySegment = "%00"
	reserved     = "zookeeper"
)

// pathOf returns the path of a lock.
func pathOf(name string) string {
	var b strings.Builder
	b.Grow(len(name) + 1)
	for top, more := true, true; more; top = false {
		var segment string
		segment, name, more = strings.Cut(name, "/")
		b.WriteByte('/')
		b.WriteString(escapeSegment(segment, top))
	}
	return b.String()
}

// nameOf reverses pathOf. It returns false for a path that no name has.
func nameOf(path string) (string, bool) {
	path, ok := strings.CutPrefix(path, "/")
	if !ok {
		return "", false
	}
	var segments []string
	for _, segment := range strings.Split(path, "/") {
		segments = append(segments, unescapeSegment(segment))
	}
	name := strings.Join(segments, "/")
	return name, pathOf(name) == "/"+path
}

func escapeSegment(s string, top bool) string {
	switch {
	case s == "":
		return emptySegment
	case s == ".", s == "..", top && s == reserved:
		return escapeBytes(s[:1]) + s[1:]
	case !top && isLockNode(s):
		return escapeRunes(s, infixInitials)
	}
	return escapeRunes(s, "")
}

// isLockNode reports whether a segment belongs to the lock whose path is its parent.
func isLockNode(segment string) bool {
	if segment == locksNode || segment == leasesNode {
		return true
	}
	_, is := parseNode(segment)
	return is
}

// escapeRunes escapes what has to be escaped everywhere, and the letters in more.
func escapeRunes(s, more string) string {
	var b strings.Builder
	done := 0 // how much of s is in b
	for i, n := 0, 0; i < len(s); i += n {
		var r rune
		r, n = utf8.DecodeRuneInString(s[i:])
		if !forbidden(r, n) && !isEscape(s[i:]) && !strings.ContainsRune(more, r) {
			continue
		}
		b.WriteString(s[done:i])
		b.WriteString(escapeBytes(s[i : i+n]))
		done = i + n
	}
	if done == 0 {
		return s
	}
	return b.String() + s[done:]
}

// forbidden reports whether ZooKeeper refuses paths with a character, which it checks in UTF-16.
// Invalid UTF-8 can't be sent.
func forbidden(r rune, size int) bool {
	switch {
	case r == utf8.RuneError && size == 1:
		return true
	case r <= 0x1f, r >= 0x7f && r <= 0x9f, r >= 0xd800 && r <= 0xf8ff, r >= 0xfff0:
		return true
	}
	return false
}

const hexDigits = "0123456789ABCDEF"

func escapeBytes(s string) string {
	b := make([]byte, 0, 3*len(s))
	for i := range len(s) {
		b = append(b, '%', hexDigits[s[i]>>4], hexDigits[s[i]&15])
	}
	return string(b)
}

// isEscape reports whether s begins with an escaped byte.
func isEscape(s string) bool {
	return len(s) >= 3 && s[0] == '%' && strings.IndexByte(hexDigits, s[1]) >= 0 && strings.IndexByte(hexDigits, s[2]) >= 0
}

func unescapeSegment(s string) string {
	if s == emptySegment {
		return ""
	}
	if !strings.Contains(s, "%") {
		return s
	}
	b := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if !isEscape(s[i:]) {
			b = append(b, s[i])
			continue
		}
		b = append(b, byte(strings.IndexByte(hexDigits, s[i+1])<<4|strings.IndexByte(hexDigits, s[i+2])))
		i += 2
	}
	return string(b)
}

// The children of a lock's path have Curator's names: "_c_", the Owner's UUID, "-", an infix for
// the mode, and the sequence number that ZooKeeper appends.
const (
	protection = "_c_"
	ownerLen   = 36

	// The waiters of a semaphore queue below locks, as for a mutex. The first of them takes a node
	// below leases.
	locksNode  = "locks"
	leasesNode = "leases"
)

// foreign is the mode of nodes that belong to other recipes.
const foreign driver.Mode = 0

// infixes precede the sequence numbers of Curator's and kazoo's nodes.
var infixes = []struct {
	text string
	mode driver.Mode
}{
	{"lock-", driver.Exclusive}, {"__READ__", driver.Read}, {"__WRIT__", driver.Write}, {"lease-", driver.Counted},
	{"latch-", foreign}, {"__lock__", foreign}, {"__rlock__", foreign},
}

// infixInitials are the first letters of all infixes: a name without them has no infix.
const infixInitials = "l_"

func infixOf(m driver.Mode) string {
	for _, x := range infixes {
		if x.mode == m {
			return x.text
		}
	}
	return ""
}

// node is a child of a lock's path that belongs to the lock.
type node struct {
	name  string
	mode  driver.Mode
	seq   string // its sequence number
	owner string // a UUID; without one, the whole name
	limit int    // a lease's number of permits; 0: unknown
}

// parseNode parses a child's name. It returns false if the child belongs to no lock.
func parseNode(name string) (node, bool) {
	for _, x := range infixes {
		i := strings.LastIndex(name, x.text)
		if i < 0 || !isSequence(name[i+len(x.text):]) {
			continue
		}
		n := node{name: name, mode: x.mode, seq: name[i+len(x.text):], owner: name}
		if owner, rest, ok := cutOwner(name[:i]); ok {
			n.owner = owner
			n.limit = parseLimit(rest)
		}
		return n, true
	}
	return node{}, false
}

// cutOwner splits "_c_UUID-rest".
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
	return strings.Count(s, "-") == 4 && strings.Trim(s, "-0123456789abcdefABCDEF") == ""
}

// isSequence reports whether s is a number as ZooKeeper appends it: of ten characters at least, and
// negative after an overflow.
func isSequence(s string) bool {
	if len(s) < 10 || len(s) > 11 {
		return false
	}
	digits := strings.TrimPrefix(s, "-")
	return strings.Trim(digits, "0123456789") == "" && (len(s) == 10 || digits != s)
}

// maxSeq is close to the last sequence number, 2147483647. After that, ZooKeeper repeats it, or
// gives negative numbers to concurrent creates: the order is lost, and the parent's Stat doesn't
// change with new nodes.
const maxSeq = "2146435072" // 1<<31 - 1<<20

// exhausted reports whether numbers from this one on are unreliable.
func (n node) exhausted() bool { return n.seq[0] == '-' || n.seq >= maxSeq }

// prefixOf returns the first part of the names of an Owner's nodes.
func prefixOf(owner string) string { return protection + owner + "-" }

// limitPart is the part of a lease's name with the number of permits. Curator ignores it.
func limitPart(limit int) string { return fmt.Sprintf("max%d-", limit) }

func parseLimit(s string) int {
	s, isMax := strings.CutPrefix(s, "max")
	s, ends := strings.CutSuffix(s, "-")
	if !isMax || !ends {
		return 0 // Atoi would allocate its error
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		return 0
	}
	return max(n, 0)
}

// parentOf returns a path without its last part, which is nodeName.
func parentOf(path string) string { return path[:strings.LastIndexByte(path, '/')] }

func nodeName(path string) string { return path[strings.LastIndexByte(path, '/')+1:] }

// nodeList holds the nodes of a lock, sorted by their numbers as text, as Curator does. A reader
// that was a writer has the writer's number.
type nodeList []node

// listing is the children of a lock's path.
type listing struct {
	nodes     nodeList
	hasLocks  bool // it is, or was, a semaphore
	hasLeases bool
}

// readListing sorts children, and leaves out those that don't belong to the lock.
func readListing(children []string) listing {
	var l listing
	for _, name := range children {
		switch name {
		case locksNode:
			l.hasLocks = true
		case leasesNode:
			l.hasLeases = true
		default:
			if n, ok := parseNode(name); ok {
				l.nodes = append(l.nodes, n)
			}
		}
	}
	slices.SortFunc(l.nodes, func(a, b node) int {
		return cmp.Or(strings.Compare(a.seq, b.seq), strings.Compare(a.name, b.name))
	})
	return l
}

// index returns the index of a name, or -1.
func (l nodeList) index(name string) int {
	return slices.IndexFunc(l, func(n node) bool { return n.name == name })
}

// indexOfOwner returns the index of an Owner's first node, or -1.
func (l nodeList) indexOfOwner(owner string) int {
	return slices.IndexFunc(l, func(n node) bool { return n.owner == owner })
}

func (l nodeList) ofOwner(owner string) nodeList {
	var own nodeList
	for _, n := range l {
		if n.owner == owner {
			own = append(own, n)
		}
	}
	return own
}

// blocker returns the node that the node at index me, of this mode, waits for. A new node's index
// would be len(l). Readers wait only for the last writer before them.
func (l nodeList) blocker(me int, m driver.Mode) (node, bool) {
	for i := me - 1; i >= 0; i-- {
		if me < len(l) && l[i].seq == l[me].seq {
			continue // the same owner, as a writer
		}
		if m != driver.Read || l[i].mode == driver.Write {
			return l[i], true
		}
	}
	return node{}, false
}

// otherKind returns a node before index me that belongs to another kind of lock.
func (l nodeList) otherKind(me int, m driver.Mode) (node, bool) {
	for _, n := range l[:me] {
		if n.mode == foreign || !n.mode.SameKind(m) {
			return n, true
		}
	}
	return node{}, false
}

// limit returns the number of permits of a semaphore, from its leases; 0: unknown.
func (l nodeList) limit() int {
	limit := 0
	for _, n := range l {
		limit = max(limit, n.limit)
	}
	return limit
}

// conflictError is for a path that is in use by another kind of lock.
func conflictError(path string, n node) error {
	what := map[driver.Mode]string{
		driver.Exclusive: "a mutex", driver.Read: "a read/write lock", driver.Write: "a read/write lock",
		driver.Counted: "a semaphore", foreign: "an unknown recipe",
	}[n.mode]
	return fmt.Errorf("%w: %s is in use as %s: it has the node %s", driver.ErrInvalid, driver.Quote(path), what, n.name)
}

// exhaustedError is for a path without further sequence numbers.
func exhaustedError(path string, n node) error {
	return fmt.Errorf("%w: ZooKeeper's sequence numbers are used up at %s (%s): delete that node when the lock is not in use, so that they begin at 0 again", driver.ErrInvalid, driver.Quote(path), n.seq)
}

// heldBy is the refusal because of these nodes.
func heldBy(nodes ...node) *driver.HeldError {
	e := &driver.HeldError{}
	for _, n := range nodes {
		e.Holders = append(e.Holders, driver.Holder{Owner: n.owner, Mode: cmp.Or(n.mode, driver.Counted), Held: -1, Left: -1})
	}
	return e
}

// revokeData replaces a node's data when its lock is revoked, as in Curator.
const revokeData = "__REVOKE__"

// nodeData is the content of a node. Curator reads no data but revokeData. Its own nodes contain
// their host's address, or nothing if they are revocable.
type nodeData struct {
	Distlock *nodeDataBody `json:"distlock"`
}

type nodeDataBody struct {
	Meta      map[string]string `json:"meta,omitempty"`
	Revocable bool              `json:"revocable,omitempty"`
}

// encodeData returns the JSON of a nodeData whose Meta is the JSON meta; "": none.
func encodeData(meta string, revocable bool) []byte {
	b := make([]byte, 0, len(meta)+48)
	b = append(b, `{"distlock":{`...)
	if meta != "" {
		b = append(append(b, `"meta":`...), meta...)
	}
	if meta != "" && revocable {
		b = append(b, ',')
	}
	if revocable {
		b = append(b, `"revocable":true`...)
	}
	return append(b, "}}"...)
}

func decodeData(n node, data []byte) nodeDataBody {
	var own nodeData
	if json.Unmarshal(data, &own) == nil && own.Distlock != nil {
		return *own.Distlock
	}
	switch text := string(data); {
	case text == revokeData:
		return nodeDataBody{Revocable: true}
	case text == "":
		// zk.Lock's nodes are empty too; it has no UUID in their names. Curator's other locks can't be revoked.
		return nodeDataBody{Revocable: n.owner != n.name && n.mode == driver.Exclusive}
	case printable(text):
		return nodeDataBody{Meta: map[string]string{"host": text}}
	}
	return nodeDataBody{}
}

// printable reports whether s is one short line, such as a participant's id.
func printable(s string) bool {
	odd := func(r rune) bool { return !unicode.IsPrint(r) }
	return len(s) <= 256 && utf8.ValidString(s) && !strings.ContainsFunc(s, odd) && !strings.HasPrefix(s, "{")
}
